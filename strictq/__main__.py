"""`python -m strictq`: the command where its script is not on the path."""

from strictq.cli import main

main()
