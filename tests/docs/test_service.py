"""The app of docs/howto/service.md under `strictq run`, with the options that its recipes have, stopped as they are stopped."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
from pathlib import Path

import click
import pytest

import strictq
from tests.support.command import environment, start
from tests.support.running import PATIENCE_SECONDS, run_python, until

from .test_code_blocks import ROOT, blocks, parse

PAGE = ROOT / "docs" / "howto" / "service.md"


def block(language: str) -> str:
    (found,) = [b for b in blocks(PAGE) if b.language == language and not b.text.startswith("strictq ")][:1]
    return found.text


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(block("ini"))
    return parser


def of_systemd() -> list[str]:
    return shlex.split(unit()["Service"]["ExecStart"])


def of_docker() -> list[str]:
    (command,) = re.findall(r"^CMD (\[.*\])$", block("dockerfile"), re.M)
    words: list[str] = json.loads(command)
    return words


def grace(words: list[str]) -> float:
    return float(words[words.index("--grace") + 1])


@pytest.mark.parametrize("words", [of_systemd(), of_docker()], ids=["systemd", "docker"])
@pytest.mark.parametrize("to_all", [True, False], ids=["all", "one"])
def test_the_app_runs_and_stops_as_a_service(tmp_path: Path, words: list[str], to_all: bool) -> None:
    """systemd stops all processes, Docker the first one; each works with both."""
    (tmp_path / "shop.py").write_text(block("python"))
    env = environment(tmp_path, SHOP_QUEUE=str(tmp_path / "queue"))
    sends = "import shop\nfor n in range(20): shop.app.send('charge', key=n % 4, order=n, cents=n)"
    run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{sends}", env=env)
    process = start(tmp_path, *words[1:], env=env, start_new_session=True)
    with strictq.open(tmp_path / "queue", create=False) as q:
        until(lambda: q.stats().acks == 20, "the orders")
    (os.killpg if to_all else os.kill)(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    charged = [(int(n), int(cents)) for n, cents in re.findall(r"INFO order (\d+): (\d+) cents$", err, re.M)]
    assert sorted(charged) == [(n, n) for n in range(20)]
    for key in range(4):
        assert [n for n, _ in charged if n % 4 == key] == list(range(key, 20, 4)), "in order, whichever process had it"


def test_the_recipes_wait_longer_than_the_command() -> None:
    service = unit()["Service"]
    assert float(service["TimeoutStopSec"]) > grace(of_systemd())
    assert service["RestartPreventExitStatus"] == "2"
    (stop,) = re.findall(r"--stop-timeout (\d+)", PAGE.read_text(encoding="utf-8"))
    assert float(stop) > grace(of_docker())


@pytest.mark.parametrize("words", [of_systemd(), of_docker()], ids=["systemd", "docker"])
def test_the_recipes_have_options_that_exist(words: list[str]) -> None:
    parse(["strictq", *words[1:]])
    with pytest.raises(click.UsageError):
        parse(["strictq", *words[1:], "--no-such-option"])
