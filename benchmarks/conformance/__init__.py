"""The behaviour of strictq and its peers in situations that users complain about: `python -m benchmarks conformance`."""
