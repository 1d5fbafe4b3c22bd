"""The entry point of the `strictq` command.

Importing strictq is most of what a short command does. So this module lies outside the package: whoever imports one of the
package's modules imports the package itself first, and Ctrl-C would be a traceback until that is done.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command."""
    try:
        from strictq.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
