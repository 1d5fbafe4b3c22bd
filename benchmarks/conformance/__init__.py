"""What strictq and its peers do in the situations that users complain about: `python -m benchmarks conformance`."""
