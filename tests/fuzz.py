"""Coverage-guided fuzzing of what programs hand in: the tests of tests/faults/test_hostile.py, driven by atheris.

    pip install atheris
    python -m tests.fuzz whatever_is_sent -max_total_time=3600

What follows the name goes to libFuzzer. It runs until something fails, or the time is over.
"""

from __future__ import annotations

import sys

NAMES = ("whatever_is_sent", "what_is_sent_comes_out_as_it_was", "whatever_is_configured", "whatever_is_called")


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[1] not in NAMES:
        print(f"usage: python -m tests.fuzz {{{','.join(NAMES)}}} [libFuzzer's arguments]", file=sys.stderr)
        return 2
    try:
        import atheris
    except ImportError:
        print("it needs atheris: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["strictq"]):
        from tests.faults import test_hostile
    test = getattr(test_hostile, f"test_{arguments[1]}")
    atheris.Setup([arguments[0], *arguments[2:]], test.hypothesis.fuzz_one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
