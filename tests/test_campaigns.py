"""The long campaigns' runner: it counts, stops when it should, and tells of a round that failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests import campaigns
from tests.campaigns import ATTACKS, Attack, main
from tests.support import running


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE_SECONDS", running.PATIENCE_SECONDS)  # rounds change it


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flips", "faults"])
def test_a_round_does_something(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--rounds", "1", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "1 rounds, 0 broken; seeds 5 to 5" in out
    assert f"done: 0 {ATTACKS[name].goal}" not in out


def _counting(_seed: int, place: Path) -> Counter[str]:
    assert not list(place.iterdir())
    return Counter({"things": 10, "more": 1})


def _odd_ones_fail(seed: int, place: Path) -> Counter[str]:
    assert seed % 2 == 0, "a promise"
    return _counting(seed, place)


def test_it_ends_when_enough_was_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaigns, "ATTACKS", {"one": Attack(_counting, "things"), "two": Attack(_counting, "things")})
    assert main(["--count", "35", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    for name in ("one", "two"):
        assert f"{name} done: 40 things (4 more) in " in out
    assert out.count(", 4 rounds, 0 broken; seeds 7 to 10") == 2


def test_a_broken_round_is_reported_and_others_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaigns, "ATTACKS", {"one": Attack(_odd_ones_fail, "things")})
    assert main(["one", "--rounds", "4"]) == 1
    out = capsys.readouterr().out
    assert "AssertionError: a promise" in out
    assert "python -m tests.campaigns one --seed 3 --rounds 1" in out
    assert "one done: 20 things (2 more) in " in out
    assert ", 4 rounds, 2 broken; seeds 1 to 4, broken: 1, 3" in out


def test_the_files_of_a_broken_round_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def writes(seed: int, place: Path) -> Counter[str]:
        (place / "history").write_text(f"round {seed}")
        return _odd_ones_fail(seed, place / "..") if seed % 2 else Counter({"things": 1})

    monkeypatch.setattr(campaigns, "ATTACKS", {"one": Attack(writes, "things")})
    assert main(["one", "--rounds", "4", "--keep", str(tmp_path / "kept")]) == 1
    assert {p.relative_to(tmp_path).as_posix(): p.read_text() for p in tmp_path.rglob("history")} == {
        "kept/one-1/history": "round 1",
        "kept/one-3/history": "round 3",
    }


def test_nothing_done_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flips", "--minutes", "0"]) == 1
    assert "0 flips" in capsys.readouterr().out


def test_an_attack_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["powercuts"])
    assert "no such attack: powercuts" in capsys.readouterr().err
