"""Every adapter does what a comparison asks of it, at the durability that it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import Durability, processor_seconds
from benchmarks.peers import ALL, PEERS, notes
from benchmarks.peers.bare import BARE, Bare
from benchmarks.peers.contest import OURS, Entrant
from benchmarks.peers.peer import FEATURES, Host, NotOffered, Opening, Peer
from benchmarks.peers.plots import draw, rates
from benchmarks.peers.strict import Strictq
from benchmarks.peers.table import JSON, PAGE, goals, matrix, page, points, processor
from benchmarks.peers.work import drain, in_threads, life, life_beside_others, pairs
from benchmarks.report import folded
from tests.support.running import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DURABILITIES: tuple[Durability, ...] = ("full", "process")


@pytest.fixture(params=list(ALL))
def kind(request: pytest.FixtureRequest) -> type[Peer]:
    found: type[Peer] = ALL[request.param]
    if (why := found.missing()) is not None:
        pytest.skip(why)
    return found


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def host(kind: type[Peer], durability: Durability, tmp_path: Path) -> Iterator[Host]:
    with kind.hosted(tmp_path, durability) as host:
        yield host


@pytest.fixture
def peer(kind: type[Peer], durability: Durability, tmp_path: Path, host: Host) -> Iterator[Peer]:
    peer = kind(Opening(tmp_path, durability))
    yield peer
    peer.close()


def test_what_was_sent_is_received_once(peer: Peer) -> None:
    sent = [(f"key-{n % 7}", b"%d" % n) for n in range(50)]
    todo = peer.native(sent)
    peer.send(todo[:1])
    peer.send(todo[1:])
    one = peer.receive(1)
    peer.ack(one)
    rest = peer.receive(100)
    peer.ack(rest)
    received = [peer.content(h) for h in [*one, *rest]]
    assert sorted(received) == sorted(sent)
    for key in {key for key, _ in sent}:
        assert [m for m in received if m[0] == key] == [m for m in sent if m[0] == key], (
            "a single consumer sees the order of sends"
        )
    assert peer.receive(1) == []
    assert peer.receive(10) == []


def test_acked_messages_do_not_come_back(kind: type[Peer], durability: Durability, tmp_path: Path, host: Host) -> None:
    first = kind(Opening(tmp_path, durability))
    first.send(first.native([("k", b"%d" % n) for n in range(5)]))
    for _ in range(3):
        first.ack(first.receive(1))
    first.close()
    second = kind(Opening(tmp_path, durability, recover=True))
    assert [second.content(h) for h in second.receive(10)] == [("k", b"3"), ("k", b"4")]
    second.close()


def test_durability_is_read_back(peer: Peer, durability: Durability) -> None:
    settings = peer.settings()
    assert peer.durable_at(settings) == durability
    for name, value in settings.items():
        if name in ("synchronous", "journal_mode", "appendonly", "appendfsync"):
            assert peer.durable_at({**settings, name: "off"}) != durability, f"{name}={value} is looked at"


def test_lives_and_threads(peer: Peer, kind: type[Peer], durability: Durability, tmp_path: Path) -> None:
    life(peer, peer.native(pairs(20, 3)), 1)
    life(peer, peer.native(pairs(50, 3)), 20)
    peers = [peer, peer if peer.about.shared else kind(Opening(tmp_path, durability))]
    todo = peer.native(pairs(20, 10))
    try:
        _, acked = in_threads([lambda p=p, n=n: life_beside_others(p, todo[n::2], 1) for n, p in enumerate(peers)])
    finally:
        if peers[1] is not peer:
            peers[1].close()
    assert acked == 20
    assert drain(peer, 10) == 0


def test_bytes_and_memory_are_counted(peer: Peer, host: Host) -> None:
    before = host.written()
    if before is None:
        pytest.skip("this system does not count them")
    peer.send(peer.native(pairs(50, 3)))
    after = host.written()
    assert after is not None
    assert after - before >= 50 * 100, "at least the bodies"
    if peer.about.kind == "server":
        resident = host.resident()
        assert resident is not None
        assert 0 < resident[0] <= resident[1]


def test_what_is_not_offered_is_said(kind: type[Peer], peer: Peer) -> None:
    about = peer.about
    assert set(about.lacks) | about.offers == set(FEATURES)
    assert "nack" in about.offers or _refuses(lambda: peer.nack(None))
    assert "dedup" in about.offers or _refuses(lambda: peer.send_once(None, "id"))
    assert "dead letters" in about.offers or _refuses(lambda: peer.reject(None))


def _refuses(call: object) -> bool:
    with pytest.raises(NotOffered):
        call()  # type: ignore[operator]
    return True


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "benchmarks", "peers", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_every_pattern_is_measured_and_printed(tmp_path: Path, which: int) -> None:
    """With one of the peers. The tests above are of each."""
    there = [name for name, kind in PEERS.items() if kind.missing() is None]
    if not there:
        pytest.skip("no peer is installed")
    peers = [there[which]]
    file, table = tmp_path / "figures.json", tmp_path / "table.md"
    done = run("--tiny", "--peer", *peers, "--json", str(file), "--table", str(table), "--dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["failures"] == {}
    # Who does not offer several processes may fail with them.
    assert all(line.startswith("processes ") for line in result["left_out"])
    assert {f["case"] for f in result["figures"]} == {
        "batch", "keys", "backlog", "blocked", "threads", "processes", "latency", "memory"
    }  # fmt: skip
    assert all(f["goal"] is None for f in result["figures"]), "sizes this small are not judged"
    for peer in peers:
        about = result["peers"][peer]
        assert about["versions"]
        assert set(about["settings"]) == {"full", "process"}
        for text in (peer, *about["versions"].values(), *about["lacks"]):
            assert text in done.stdout
        compared = {f["case"] for f in result["figures"] if f["against"] == peer}
        offered = set() if "several processes" in about["lacks"] else {"processes"}
        assert compared >= {"batch", "keys", "backlog", "blocked", "threads"} | offered
    assert table.read_text(encoding="utf-8") == matrix(result)
    assert sorted(tmp_path.iterdir()) == [file, table], "the run leaves nothing behind"


def test_an_unknown_peer_is_refused() -> None:
    done = run("--peer", "no-such-queue")
    assert done.returncode == 2
    assert "litequeue" in done.stderr


def figure(case: str, size: int, against: str, ours: float, base: float, *said: str, rounds: int = 3) -> dict[str, Any]:
    ratio = ours / base
    return {
        "case": case, "what": f"{case} {size}", "unit": "times", "durability": "process", "batch": 1000, "keys": 1000,
        "size": size, "against": against, "ours": ours, "base": base, "median": ratio, "goal": None, "met": None,
        "values": [ratio, 0.9 * ratio, 1.3 * ratio][:rounds],
        "note": notes.joined("9,000 and 1,000 messages a round", *said, "lacks order per key, nack"),
    }  # fmt: skip


RESULT: dict[str, Any] = {
    "form": "short",
    "versions": {"cores": 2, "load": "0.1 before the run"},
    "peers": {"strictq": {"lacks": []}, "huey": {"lacks": ["ack", "nack"]}, "redis": {"lacks": ["nack"]}},
    "figures": [
        figure("backlog", 1000, "huey", 50_000.0, 5000.0),
        figure("backlog", 1000, "redis", 50_000.0, 40_000.0),
        figure("backlog", 100_000, "huey", 40_000.0, 400.0),
    ],
}


def test_table() -> None:
    table, lacking = matrix(RESULT).split("\n\n", 1)
    lines = table.splitlines()
    assert len(lines) == 4
    assert lines[2].endswith("| 50,000 | 5,000 (10×; 9.0–13) | 40,000 (1.25×; 1.12–1.62) |")
    assert lines[3].endswith("| 40,000 | 400 (100×; 90–130) | – |")
    assert "- huey: ack, nack\n- redis: nack\n" in lacking


def test_what_must_be_known_of_a_figure_stands_beside_it() -> None:
    shards, small = "strictq has 4 shards", notes.scaled(100, 200)
    doubled, waited = notes.counted("huey", 10, 12), notes.waiting("huey", 70, 4)
    figures = [
        figure("processes", 2, "huey", 50.0, 5.0, small, shards, waited, doubled),
        figure("processes", 2, "redis", 50.0, 10.0, small, shards),
        figure("processes", 4, "huey", 40.0, 10.0, shards, rounds=1),
        figure("processes", 4, "redis", 60.0, 10.0, shards, notes.waiting("redis", 70, 4)),
    ]
    table, listed, _ = matrix({**RESULT, "figures": figures}).split("\n\n", 2)
    assert listed.splitlines() == [
        f"1. {small}", f"2. {shards}", f"3. {waited}", f"4. {doubled}", "5. redis had 70 waiting after 4 s"
    ]  # fmt: skip
    *_, first, second = table.splitlines()
    assert first.startswith("| processes 2<sup>1</sup> | ")
    assert first.endswith(" | 50<sup>2</sup> | 5 (10×; 9.0–13)<sup>3, 4</sup> | 10 (5.0×; 4.5–6.5) |")
    assert second.startswith("| processes 4 | ")
    assert second.endswith(" | 60<sup>2</sup> | 10 (4.0×) | 10 (6.0×; 5.4–7.8)<sup>5</sup> |"), (
        "of strictq's rates the one of most rounds"
    )


def test_a_note_is_said_once_however_many_rounds_say_it(tmp_path: Path) -> None:
    entrant = Entrant("huey", tmp_path, "process", None, None)  # type: ignore[arg-type]
    for sent, acked in ((10, 12), (10, 9), (10, 12)):
        entrant.say(notes.counted("huey", sent, acked))
    assert notes.miscounts(entrant.note) == [(10, 12), (10, 9)]
    assert notes.shown(entrant.note) == ["huey: 10 sent and 12 acked", "huey: 10 sent and 9 acked"]


def judged(against: str, ours: float, base: float, goal: float | None, *said: str) -> dict[str, Any]:
    return {
        **figure("batch", 10, against, ours, base, *said), "ours_processor": 1e6 / ours, "base_processor": 2e6 / base,
        "goal": None if goal is None else {"value": goal}, "met": None if goal is None else ours / base >= goal,
    }  # fmt: skip


def test_goals_that_sqlite_itself_does_not_reach_are_distinguished() -> None:
    figures = [
        judged("huey", 4000.0, 10_000.0, 5.0),
        judged("diskcache", 4000.0, 1000.0, 5.0),
        judged("litequeue", 4000.0, 500.0, 5.0),
        judged(BARE, 4000.0, 20_000.0, None),
    ]
    told = goals({**RESULT, "figures": figures})
    assert told.startswith("1 of 3 comparisons reach their goal in the median of their rounds. Bare inserts,")
    assert "at 1 of the others." in told
    assert "huey (goal 5×): batch 10 in batches of 1,000 at process 0.40× (the bare database: 2.0×)" in told
    assert "diskcache (goal 5×): batch 10 in batches of 1,000 at process 4.00×\n" in told + "\n"
    assert "litequeue" not in told


@pytest.mark.parametrize("goal", [5.0, None], ids=["of an earlier run", "of one that does not judge it"])
def test_who_did_other_work_neither_reaches_its_goal_nor_misses_it(goal: float | None) -> None:
    odd = judged("huey", 4000.0, 500.0, goal, notes.counted("huey", 1000, 1020))
    told = goals({**RESULT, "figures": [odd, judged("redis", 4000.0, 1000.0, 1.0)]})
    reached, why, listed = told.split("\n\n")
    assert reached.startswith("1 of 1 comparisons reach their goal")
    assert why.startswith("Neither reached nor missed, because")
    assert listed == "- huey: batch 10 in batches of 1,000 at process 8.00× (1,000 sent, 1,020 acked)"
    assert goals({**RESULT, "figures": [odd]}) == f"{why}\n\n{listed}"
    assert goals(RESULT) == "Sizes this small are not judged."


def test_processor_time_is_of_everything_that_works_for_a_message() -> None:
    figures = [judged("redis", 50_000.0, 25_000.0, 1.0)]
    *_, line = processor({**RESULT, "figures": figures}).splitlines()
    assert line.endswith("| 20.0 | – | 80.0 |")


def test_the_time_of_another_process_is_counted() -> None:
    busy = "import sys\nwhile True:\n    pass"
    process = subprocess.Popen([sys.executable, "-c", busy])
    try:
        before = processor_seconds(process.pid)
        if before is None:
            pytest.skip("this system does not count it")
        until = time.monotonic() + PATIENCE_SECONDS
        while (after := processor_seconds(process.pid)) == before:
            assert time.monotonic() < until
        assert after is not None
        assert 0 < after - before < PATIENCE_SECONDS
    finally:
        process.kill()
        process.wait()
    assert processor_seconds(process.pid) is None, "it is gone"


def test_the_bare_database_appends_reads_and_deletes(durability: Durability, tmp_path: Path) -> None:
    bare = Bare(Opening(tmp_path, durability))
    assert bare.durable_at(bare.settings()) == durability
    life(bare, bare.native(pairs(3, 2)), 1)
    bare.send(bare.native([("a", b"1"), ("b", b"2"), ("a", b"3")]))
    first = bare.receive(2)
    assert [bare.content(row)[1] for row in first] == [b"1", b"2"]
    bare.ack(first)
    assert [bare.content(row)[1] for row in bare.receive(10)] == [b"3"]
    bare.close()


def test_processes_that_write_at_once_have_shards_of_their_own(tmp_path: Path) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    alone.mkdir()
    many.mkdir()
    first = Strictq(Opening(alone, "process"))
    assert first.q.shards == 1
    first.close()
    for _ in range(2):  # who opens it again takes it as it is
        q = Strictq(Opening(many, "process", writers=2))
        assert q.q.shards > 1
        q.close()


def test_the_documentation_is_of_the_record() -> None:
    result = json.loads(JSON.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(result), (
        "run `python -m benchmarks peers --write --from docs/pictures/peers.json`"
    )
    for figure in result["figures"]:
        assert figure["what"] in page(result)


# Without these a figure is not true.
KINDS = {
    "less waited": re.compile(r"[\w -]+ had [\d,]+ waiting after \d+ s"),
    "not what was sent": re.compile(r"[\w -]+: [\d,]+ sent and [\d,]+ acked"),
    "more shards": re.compile(r"strictq has \d+ shards"),
    "no order": re.compile(r"[\w -]+ hands out the blocked key's messages"),
    "fewer rounds": re.compile(r"\d+ rounds? of it: it took \d+ s"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_notes_of_the_record_are_on_the_page(kind: str) -> None:
    result = json.loads(JSON.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    table, _, rest = matrix(result).partition("\n\n")
    numbers = {said: number for number, said in re.findall(r"^(\d+)\. (.+)$", rest, re.MULTILINE)}
    assert table in text
    found = [
        (f, note)
        for f in result["figures"]
        if f["unit"] == "times"
        for note in re.split("; |a round, ", f["note"])
        if KINDS[kind].fullmatch(note)
    ]
    if not found:
        pytest.skip("there was no such figure in the run that was kept")
    for f, note in found:
        assert folded(f"\n{numbers[note]}. {note}\n") in text
        start = f"| {f['what']} | {f['durability']} | {f['batch']:,} | "
        (line,) = (row for row in table.splitlines() if re.sub("<sup>.+?</sup>", "", row).startswith(start))
        heads = [head.strip() for head in table.splitlines()[0].split("|")]
        cell = line.split("|")[heads.index("strictq/s" if note.startswith("strictq ") else f["against"])]
        (marks,) = re.findall(r"<sup>([\d, ]+)</sup>", cell)
        assert numbers[note] in marks.split(", ")


def test_what_a_peer_lacks_and_how_rounds_differed_is_on_the_page() -> None:
    result = json.loads(JSON.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    for name in PEERS:
        assert folded(f"\n- {name}: {', '.join(result['peers'][name]['lacks'])}\n") in text
    table = matrix(result).partition("\n\n")[0]
    several = [f for by_peer in points(result).values() for f in by_peer.values() if len(f["values"]) > 1]
    assert len(re.findall(r"×; [\d.]+–[\d.]+\)", table)) == len(several)


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (file,) = draw(RESULT, tmp_path)
    assert file.name == "peers-backlog.svg"
    text = file.read_text(encoding="utf-8")
    assert "huey" in text
    assert "messages waiting" in text


def test_a_backlog_that_could_not_be_filled_is_drawn_as_large_as_it_was() -> None:
    figures = [
        figure("backlog", 1000, "huey", 50_000.0, 5000.0),
        figure("backlog", 100_000, "huey", 40_000.0, 400.0, notes.waiting("huey", 70_500, 4.0), rounds=1),
        figure("backlog", 100_000, "redis", 30_000.0, 4000.0),
    ]
    assert rates({**RESULT, "figures": figures}, "backlog", "process") == {
        "strictq": {1000: 50_000.0, 100_000: 30_000.0},
        "huey": {1000: 5000.0, 70_500: 400.0},
        "redis": {100_000: 4000.0},
    }


def test_threads_that_can_share_nothing_get_connections_of_their_own(
    kind: type[Peer], host: Host, durability: Durability, tmp_path: Path
) -> None:
    if kind.about.shared and kind.about.name != OURS:
        pytest.skip("its threads share one object")
    peer = kind(Opening(tmp_path, durability))
    entrant = Entrant(kind.about.name, tmp_path, durability, host, peer)
    other = entrant.another()
    other.send(entrant.todo(3, 1))
    assert drain(peer, 3) == 3
    other.close()
    peer.close()
