"""What an error says at the command line: whatever the library raises, no hint names a Python call."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

import strictq
from strictq._values import errors as _errors
from strictq._values import hints as _hints
from strictq._values.hints import ALL, Coded
from strictq.cli._advice import WORDS, hint_of, in_words
from strictq.cli._command import explained

PACKAGE = Path(strictq.__file__).parent
CALLS = re.compile(r"\w\(|\bq\.\w|\b\w+\.\w+\(|=(True|False|None)\b|='|\bread_only\b|\.results\b|strictq\.\w+\.?\w*|\bawait\b|`")
"""What only a programmer can follow."""
OF_THE_COMMAND = "configuring.py"
"""Its error is the command line's own, and says what settings there are."""


NO_COMMAND = frozenset(
    """
    handler_shape only_rows give_delivery encode_body convert_key total_seconds make_config
    use_async_with consumer_name_taken use_ack transaction_of_key use_tx_methods stop_worker use_threads
    guard_main use_execute await_serve read_binary keyless_rows certificate_host executors_need_server option_path
    with_key_state give_queue use_worker server_options_path serve_again server_options executors_or_again make_queue
    make_token append_only make_queue_in_driver all_columns rename_to jump_wall await_drain retry_failures
    use_fake_clock machine_open after_commit inside_message types_are raise_instead use_job_execute batch_or_single
    give_session give_frame aware_datetime send_path share_handle json_body name_of_schedule key_and_seq
    option_of option_called option_backlog option_available_now
    option_trigger_interval option_no_loss option_kafka_client
    filter_keys local_path on_disk one_path
    path_or_paths paths_list paths_pattern no_match queue_back fail_on_missing one_queue_option fleet_checkpoint one_copy
    body_column leave_column_out insert_job consumer_in_query executors_as_owner classic_session
    """.split()  # noqa: SIM905
)
"""Codes of hints that name Python calls in parts of the library that no command uses."""


def classes(root: type[strictq.StrictqError]) -> Iterator[type[strictq.StrictqError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == _errors.__name__:
            yield kind
        yield from classes(kind)


def given_hints() -> Iterator[tuple[str, ast.expr]]:
    """(where, expression) of every hint that the package gives to an error of its own. `Failure` is the command line's."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "hint" in text else ():
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "Failure"):
                yield from ((where, keyword.value) for keyword in node.keywords if keyword.arg == "hint")
            elif isinstance(node, ast.Assign) and path.parent.name != "cli":
                yield from ((where, node.value) for t in node.targets if isinstance(t, ast.Name) and t.id == "hint")


@pytest.mark.slow
def test_every_hint_that_an_error_can_carry_has_a_code() -> None:
    found = list(given_hints())
    assert len(found) > 140
    for where, hint in found:
        text = ast.unparse(hint)
        literal = any(isinstance(node, ast.Constant) and node.value for node in ast.walk(hint) if not text.startswith("hints."))
        if OF_THE_COMMAND in where:
            continue
        assert not literal or text in ("''", "str(said['hint'])"), f"{where}: write it in _hints.py, where it has a code: {text}"
    for kind in set(classes(strictq.StrictqError)):
        assert not kind.hint or kind("x", *REST.get(kind, ()), **MORE.get(kind, {})).hint_code, kind


REST: dict[type, tuple[object, ...]] = {
    strictq.Fenced: (2,),
    _errors.PrimaryAlive: (0.0,),
    strictq.InvalidBody: (1, "why"),
    strictq.LeaseLost: (1, 1),
    strictq.PartialFailure: ([],),
    strictq.TargetUnavailable: ("there",),
    strictq.ReplicaGap: (1,),
    strictq.ServerUnreachable: ("here",),
    strictq.ServerRefused: ("here",),
}
"""What constructors want besides a message."""
MORE: dict[type, dict[str, object]] = {
    kind: {"shard": 0} for kind in set(classes(strictq.StrictqError)) if issubclass(kind, strictq.StoreError)
}
del MORE[strictq.NotConfirmed]


def test_a_code_is_its_name_and_no_two_sentences_share_one() -> None:
    named = {name: value for name, value in vars(_hints).items() if isinstance(value, Coded)}
    assert {name.lower() for name in named} == set(ALL) == {value.code for value in named.values()}
    assert len(named) == len(ALL) > 100


def test_codes_that_no_command_shows_need_no_words() -> None:
    assert set(ALL) >= NO_COMMAND
    assert not NO_COMMAND & set(WORDS)


@pytest.mark.parametrize("code", sorted(set(ALL) - NO_COMMAND))
def test_what_the_command_line_says_names_no_call(code: str) -> None:
    shown = WORDS.get(code, ALL[code].template)
    assert not CALLS.search(shown.replace("strictq check QUEUE", "")), shown


def test_what_is_said_instead_is_needed_and_takes_the_same_parameters() -> None:
    for code, words in WORDS.items():
        assert words == "" or words != ALL[code].template
        fields = {name for _, name, _, _ in Formatter().parse(words) if name}
        assert fields <= {name for _, name, _, _ in Formatter().parse(ALL[code].template) if name}


def test_the_command_that_a_hint_names_is_there() -> None:
    from strictq.cli import COMMANDS

    for text in WORDS.values():
        for name in re.findall(r"strictq ([a-z-]+)", text):
            assert name in COMMANDS, text


def test_a_hint_is_the_class_s_or_its_own() -> None:
    assert hint_of(strictq.QueueFull("full")) == WORDS["queue_full"]
    assert hint_of(strictq.QueueFull("full", hint="wait")) == "wait"
    assert hint_of(strictq.InvalidArgument("no", hint=_hints.LOOK_READ_ONLY)).startswith("this command writes")
    assert (strictq.QueueFull("full").hint_code, strictq.QueueFull("full", hint="wait").hint_code) == ("queue_full", "")


def test_what_a_sentence_is_filled_in_with_is_never_taken_for_words() -> None:
    """A reason may hold what a call looks like, or braces."""
    held = _hints.LANE_HELD.of(by="see q.release(key) {rest}", rest="; last error: {by}")
    assert held == "the key is held (see q.release(key) {rest}); release it with q.release(key); last error: {by}"
    assert in_words(held) == "the key is held (see q.release(key) {rest}); release it with strictq release; last error: {by}"


def test_a_sentence_in_a_sentence_is_said_in_these_words_too() -> None:
    found = _hints.QUARANTINED.of(message="shard 1: torn", hint=_hints.STORE_CORRUPT)
    assert found == f"shard 1: torn ({_hints.STORE_CORRUPT})"
    assert in_words(found) == f"shard 1: torn ({WORDS['store_corrupt']})"


@pytest.mark.parametrize("hint", [_hints.QUEUE_FULL, _hints.CHMOD.of(path="/x/{y}")])
def test_a_code_goes_with_its_error_to_another_process(hint: Coded) -> None:
    error = pickle.loads(pickle.dumps(strictq.InvalidArgument("no", hint=hint)))
    assert (error.hint, error.hint_code, error.hint.parameters) == (hint, hint.code, hint.parameters)
    assert copy.deepcopy(hint).code == hint.code


def test_of_several_failures_the_reasons_are_reported() -> None:
    full = strictq.StoreFull("the disk is full", shard=1)
    error = strictq.PartialFailure("3 of 4 failed", [None, full, full, strictq.StoreBusy("locked", shard=2)])
    text, _, hint = explained(error)
    assert text == "3 of 4 failed; shard 1: the disk is full; shard 2: locked"
    assert "results" not in hint
