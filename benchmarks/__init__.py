"""Speed of strictq as ratios to a floor measured in the same run: `python -m benchmarks --short`.

Importing this package imports nothing else: the time that `import strictq` takes is one of the things measured.
See docs/benchmarks.md for what is measured and how to read it.
"""
