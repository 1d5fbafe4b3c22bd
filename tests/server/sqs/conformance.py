"""Play every case against a server that runs elsewhere: `python -m tests.server.sqs.conformance URL`.

The wording of errors does not count. Time is waited for, so the whole table takes eleven minutes; `--seconds 5` leaves out the
cases that wait longer. docs/reference/sqs.md has the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.server.sqs.cases import CASES
from tests.server.sqs.playing import JSON, QUERY, Case, Endpoint, play


def played(url: str, protocol: str, cases: list[Case], threads: int = 32) -> dict[str, list[str]]:
    """Play the cases at the same time, each on queues of its own. Return the problems of each by name."""
    endpoint = Endpoint(url, protocol, time.sleep, wording=False)

    def one(case: Case) -> list[str]:
        try:
            return play(case, endpoint)
        except Exception as e:
            return [f"{type(e).__name__}: {e}"]

    slow_first = sorted(cases, key=lambda c: -c.seconds)
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip((c.name for c in slow_first), pool.map(one, slow_first), strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--protocol", choices=(JSON, QUERY), action="append")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="leave out cases that wait longer")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--json", help="write the problems to this file")
    given = parser.parse_args(arguments)
    report: dict[str, Any] = {}
    for protocol in given.protocol or (JSON, QUERY):
        chosen = [c for c in CASES if c.only in ("", protocol) and c.seconds <= given.seconds and given.match in c.name]
        found = played(given.url, protocol, chosen, given.threads)
        failed = {name: problems for name, problems in found.items() if problems}
        for name, problems in failed.items():
            print(f"{protocol}: {name}: {problems[0][:300]}")
        print(f"{protocol}: {len(found) - len(failed)} of {len(found)} cases")
        report[protocol] = {"played": len(found), "failed": failed}
    if given.json:
        with open(given.json, "w") as f:
            json.dump(report, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
