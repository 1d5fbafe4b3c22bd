"""`python -m benchmarks conformance`: the behaviour of strictq and its peers in situations that users complain about."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import ALL, PEERS

from .judge import Judgement, as_json, judge_all
from .tables import JSON, details, pages, table, versions


def main(arguments: Sequence[str]) -> int:
    """Run a command line. Return 0: strictq passes every scenario; 1: it does not; 2: invalid arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.record is not None:
        _publish(json.loads(options.record.read_text(encoding="utf-8")), options)
        return 0
    missing = {name: why for name in options.peer or PEERS if (why := PEERS[name].missing()) is not None}
    names = ["strictq", *(name for name in options.peer or PEERS if name not in missing)]
    if options.write and len(names) < len(ALL):
        parser.error(f"--write needs every peer; {'; '.join(f'{n}: {w}' for n, w in missing.items()) or 'leave --peer out'}")
    judgements: list[tuple[str, str, Judgement]] = []
    for scenario, name, judgement in judge_all(names, options.dir):
        print(f"{scenario:15} {name:14} {judgement.outcome:12} {judgement.harm:10} {judgement.seen}", flush=True)
        judgements.append((scenario, name, judgement))
    record = as_json(judgements, names)
    _publish(record, options)
    for name, why in missing.items():
        print(f"{name} was not judged: {why}")
    failed = [scenario for scenario, name, judgement in judgements if name == "strictq" and judgement.outcome != "passes"]
    for scenario in failed:
        print(f"strictq does not pass: {scenario}", file=sys.stderr)
    return 1 if failed else 0


def _publish(record: dict[str, Any], options: argparse.Namespace) -> None:
    print(f"\n{table(record)}\n\n{details(record)}\n\n{versions(record)}")
    for file in ([options.json] if options.json else []) + ([JSON] if options.write else []):
        file.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.write:
        for page, text in pages(record).items():
            page.write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks conformance",
        description="What strictq and other queues do in the situations that users complain about.",
        epilog='Packages: pip install "strictq[peers]"; Redis needs a redis-server, too.',
    )
    parser.add_argument("--peer", nargs="+", choices=list(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument(
        "--from", dest="record", type=Path, metavar="FILE", help="play nothing; use the outcomes of an earlier --json"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome to FILE")
    parser.add_argument("--write", action="store_true", help="write the record and the tables in README and docs anew")
    parser.add_argument("--dir", type=Path, help="where the files lie; default: the directory for temporary files")
    return parser
