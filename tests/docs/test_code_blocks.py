"""What README and docs show works: their Python runs, their shell parses, the commands of strictq in it take the words that
they are given, links lead somewhere.

A Python block that cannot run here carries `<!-- no-run: why -->` on the line before it. The other blocks of a file run
one after the other as one program, in an empty directory. A comment behind a `print` is what it prints: `...` stands for
anything, `, then ` is between what it prints the first and the second time, an explanation comes behind `:`, `;`, ` if ` or ` (`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import strictq
from tests.support.running import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w+-]*)\s*$")
NO_RUN = re.compile(r"^\s*<!-- no-run: \S.* -->\s*$")
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
RUNNER = """
import builtins, json, os, runpy, shutil, sys, traceback

really = print


def tell(*values, **options):
    caller = sys._getframe(1)
    if caller.f_code.co_filename == script:
        printed.setdefault(caller.f_lineno, []).append(" ".join(map(str, values)))
    really(*values, **options)


builtins.print = tell
for script in sys.argv[1:]:
    for left in os.listdir():
        shutil.rmtree(left, ignore_errors=True) if os.path.isdir(left) else os.unlink(left)
    printed, error = {}, ""
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        error = traceback.format_exc()
    with open(script + ".json", "w", encoding="utf-8") as file:
        json.dump({"printed": printed, "error": error}, file)
"""
"""Runs pages' programs, and notes what each of their lines prints. The directory is empty when each of them begins."""
PAGES_SECONDS = 800.0
"""For the programs of the pages on Spark, on a busy machine."""
NEEDS = {"app.schedule(": "cronsim", "starlette": "starlette", "transformWithStateInPandas(": "google.protobuf"}
"""What a page's program uses → the package that it is skipped without."""
INLINE = re.compile(r"`(strictq [a-z][^`]*)`")
BEFORE_A_COMMAND = re.compile(r"\w+=.*|do|then|else|if|while|time|!|\{")
BUILTINS = {".", "source", "cd", "export", "set", "echo", "exit"}


class Block(NamedTuple):
    language: str
    line: int
    lines: list[str]
    run: bool

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: re.Match[str] | None = None
    before = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if opened is None:
            if opened := FENCE.match(line):
                found.append(Block(opened["language"], number + 1, [], not NO_RUN.match(before)))
            elif line.strip():
                before = line
        elif line.strip() == opened["fence"]:
            opened, before = None, ""
        else:
            found[-1].lines.append(line.removeprefix(opened["indent"]))
    assert opened is None, f"{page}: a code block is not closed"
    return found


def case(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands(text: str) -> list[list[str]]:
    """The words of each simple command; enough for what a README shows. What is quoted is one word, whatever it is."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        target = False
        for word in [*lexer, ";"]:
            if word and set(word) <= set(";|&()"):
                if words:
                    found.append(words)
                words, target = [], False
            elif word and set(word) <= set("<>&"):
                if words and words[-1].isdigit():
                    words.pop()  # of 2>
                target = True
            elif target or (not words and BEFORE_A_COMMAND.fullmatch(word)):
                target = False
            else:
                words.append(word)
    return found


def parse(words: list[str]) -> None:
    """Read a command line as the command does, and do nothing.

    Raises:
        click.UsageError: there is no such command, or it does not take these words.
    """
    from strictq.cli import app

    root = app()
    with suppress(click.exceptions.Exit):  # of --help and --version
        context = root.make_context("strictq", words[1:])
        name, command, rest = root.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        command.make_context(name, rest, context)


def promised(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The line of each `print` that has a comment behind it, and what that says it prints."""
    rest = iter(f"{line}\n" for line in lines)
    for token in tokenize.generate_tokens(lambda: next(rest, "")):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("print("):
            yield token.start[0], token.string.removeprefix("#").strip()


def is_what_it_says(printed: list[str], comment: str) -> bool:
    """Whether a comment is what was printed, or begins with it; prints that it does not tell of are no matter."""
    ends = [len(comment), *(match.start() for match in re.finditer(r"[:;] | if | \(", comment))]
    said = [".*".join(map(re.escape, comment[:end].split("..."))) for end in ends]
    shown = [", then ".join(printed[:times]) for times in range(1, len(printed) + 1)]
    return any(re.fullmatch(pattern, text) for pattern in said for text in shown)


def program(page: Path) -> list[str]:
    """Return the lines of a page's program, each at the line that it has on the page: a traceback names the page's lines."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and block.run:
            lines += [""] * (block.line - 1 - len(lines)) + block.lines
    return lines


def missing(page: Path) -> str:
    """Return a package that a page's program needs and that is not installed, or an empty text."""
    text = "\n".join(program(page))
    for package in (package for word, package in NEEDS.items() if word in text):
        try:
            importlib.import_module(package)
        except ImportError:
            return package
    return ""


def shares_spark(page: Path) -> bool:
    """Return whether a page runs on Spark, and on no cluster of its own. Such pages share a JVM. Each has its own session."""
    text = "\n".join(program(page))
    return "pyspark" in text and "local-cluster" not in text


def turns(page: Path) -> Any:
    """Return a page as a case. Pages on Spark take turns."""
    on_spark = "pyspark" in "\n".join(program(page))
    return pytest.param(page, id=case(page), marks=pytest.mark.in_turn if on_spark else ())


def run_pages(pages: list[Path], place: Path) -> dict[Path, dict[str, Any]]:
    """Run pages in one process. Return the error of each, or an empty text, and what each of its lines printed."""
    scripts = {page: place / f"{page.name}.py" for page in pages}
    for page, script in scripts.items():
        script.write_text("\n".join(program(page)) + "\n", encoding="utf-8")
    cwd = place / "empty"
    cwd.mkdir()
    path = os.pathsep.join(filter(None, [str(Path(strictq.__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, *map(str, scripts.values())],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=PAGES_SECONDS,
    )
    said = f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    reports = {page: Path(f"{script}.json") for page, script in scripts.items()}
    ran = {page: json.loads(report.read_text(encoding="utf-8")) for page, report in reports.items() if report.exists()}
    whole = done.returncode == 0
    return {page: ran[page] if whole and page in ran else {"error": said, "printed": {}} for page in pages}


@pytest.fixture(scope="module")
def on_spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, dict[str, Any]]:
    """How the selected pages on Spark ended."""
    selected = [item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module]
    wanted = {item.callspec.params["page"] for item in selected if item.originalname == "test_python_blocks_run"}
    pages = [page for page in PAGES if page in wanted and shares_spark(page) and not missing(page)]
    return run_pages(pages, tmp_path_factory.mktemp("pages"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [turns(page) for page in PAGES])
def test_python_blocks_run(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lines = program(page)
    if not lines:
        pytest.skip("no Python to run on this page")
    if any("pyspark" in line for line in lines) and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and no Java was found on this machine")
    if package := missing(page):
        pytest.skip(f"{package} is not installed")
    ran = request.getfixturevalue("on_spark") if shares_spark(page) else run_pages([page], tmp_path)
    assert ran[page]["error"] == "", f"{case(page)}:\n{ran[page]['error']}"
    for line, comment in promised(lines):
        found = ran[page]["printed"].get(str(line), [])
        assert is_what_it_says(found, comment), f"{case(page)}:{line}: it says {comment!r}, and prints {found}"


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_bash_blocks_parse(page: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash on this machine")
    for block in blocks(page):
        if block.language == "bash":
            done = subprocess.run([bash, "-n"], input=block.text, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert done.returncode == 0, f"{case(page)}:{block.line}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_commands_of_strictq_take_what_they_are_given(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block.text) if block.language in ("bash", "console") else ():
            if words[0] == "strictq":
                try:
                    parse(words)
                except click.UsageError as e:
                    pytest.fail(f"{case(page)}:{block.line}: {shlex.join(words)}: {e.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_commands_in_the_text_have_the_options_that_they_are_shown_with(page: Path) -> None:
    """There a queue may be left out, and KEY stands for one: only what can't be read at all is wrong."""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for words in (words for shown in INLINE.findall(line) for words in commands(shown) if words[0] == "strictq"):
            try:
                parse(words)
            except click.BadParameter:
                continue
            except click.UsageError as e:
                pytest.fail(f"{case(page)}:{number}: {shlex.join(words)}: {e.format_message()}")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("strictq stats q --wach", "--wach"),
        ("strictq stat q", "stat"),
        ("strictq top-keys q --by size", "size"),
        ("strictq explain q", "KEY"),
        ("strictq stats q more", "more"),
        ("strictq hold q k --reason", "--reason"),
        ("strictq history export q out --forgot", "--forgot"),
        ("cat x | strictq send q --keyfield a", "--keyfield"),
        ("n=$(strictq stats q --jsn | wc -l)", "--jsn"),
        ("A=1 strictq stats q --jsn > out 2>&1", "--jsn"),
        ("true && strictq stats q --jsn # --json", "--jsn"),
        ("strictq \\\n  stats q \\\n  --jsn", "--jsn"),
    ],
)
def test_a_command_line_that_is_wrong_is_noticed(line: str, wrong: str) -> None:
    (words,) = [words for words in commands(line) if words[0] == "strictq"]
    with pytest.raises(click.UsageError) as caught:
        parse(words)
    assert wrong in caught.value.format_message()


@pytest.mark.parametrize(
    "line",
    [
        "strictq stats q --json | jq .oldest_age_seconds",
        "strictq stats q --json > stats.json 2> errors &",
        "strictq hold q k --reason 'a > b; c | d'  # why",
        "if strictq check q; then echo well; fi",
        "for k in a b; do strictq explain q $k; done",
        "strictq work q -- ./handle --wach",
        "strictq history purge q --all --yes",
        "strictq hold q k --reason ''",
        "strictq stats --help",
        "strictq --version",
    ],
)
def test_a_command_line_that_is_right_is_not_flagged(line: str) -> None:
    (words,) = [words for words in commands(line) if words[0] == "strictq"]
    parse(words)


def test_readme_uses_only_commands_that_exist() -> None:
    # What the first block installs is next to the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for block in blocks(README):
        for words in commands(block.text) if block.language == "bash" else ():
            there = words[0] in {"strictq", *BUILTINS} or shutil.which(words[0], path=path)
            assert there, f"README.md:{block.line}: {words[0]}"


def test_readme_begins_with_its_set_up() -> None:
    first, second = [b for b in blocks(README) if b.language == "bash"][:2]
    assert ["strictq", "demo"] in commands(first.text)
    assert any(words[0] == "pytest" for words in commands(second.text))


@pytest.mark.parametrize("page", PAGES, ids=case)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^( *)(`{3,}).*?^\1\2 *$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for match in LINK.finditer(text):
        target = match["target"].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{case(page)}: {target}"
