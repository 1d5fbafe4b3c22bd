"""Options that a use of a queue does not have: refused, with the name that was meant; without Spark's session."""

from __future__ import annotations

from typing import get_args

import pytest

import strictq
from strictq.spark._option_names import CALLED, ELSEWHERE, OPTIONS, Use, require_known, require_known_somewhere

USES: tuple[Use, ...] = get_args(Use)


def refused(name: str, use: Use) -> strictq.InvalidArgument:
    with pytest.raises(strictq.InvalidArgument) as e:
        require_known({"path": "/q", name: "1"}, use)
    assert f"there is no option {name} of {CALLED[use]}" in str(e.value)
    return e.value


@pytest.mark.parametrize("use", USES)
def test_what_a_use_has_is_taken_in_any_case(use: Use) -> None:
    for name in OPTIONS[use]:
        require_known({name: ""}, use)
        require_known({name.lower(): ""}, use)
        require_known_somewhere({name.upper(): ""})
    require_known({"spark.sql.anything": "", "__internal": ""}, use)


@pytest.mark.parametrize(
    ("use", "typed", "meant"),
    [
        ("stream", "maxmessagepertrigger", "maxMessagesPerTrigger"),
        ("stream", "maxMessagesPerTriger", "maxMessagesPerTrigger"),
        ("stream", "costumer", "consumer"),
        ("stream", "keepbatch", "keepBatches"),
        ("table", "key_type", "keyType"),
        ("table", "messagesPerPartitions", "messagesPerPartition"),
        ("write", "job_id", "jobId"),
        ("write", "orderedBy", "orderBy"),
        ("sink", "onMissmatch", "onMismatch"),
    ],
)
def test_a_typing_error_is_reported_with_the_name_that_was_meant(use: Use, typed: str, meant: str) -> None:
    error = refused(typed, use)
    assert (error.hint_code, error.hint) == ("did_you_mean", f"did you mean {meant}?")


@pytest.mark.parametrize(
    ("use", "name", "hint"),
    [
        ("stream", "maxOffsetsPerTrigger", "use the option maxMessagesPerTrigger"),
        ("stream", "kafka.group.id", "use the option consumer"),
        ("stream", "subscribe", "use the option path"),
        ("stream", "startingOffsets", "to skip a backlog, call q.purge()"),
        ("table", "endingOffsets", "messages that had arrived"),
        ("stream", "failOnDataLoss", "stay in the queue until they are acked"),
        ("stream", "kafka.bootstrap.servers", "a queue is a directory"),
        ("stream", "minOffsetsPerTrigger", "trigger(processingTime=...)"),
        ("write", "topic", "use the option path"),
    ],
)
def test_other_sources_options_have_a_hint(use: Use, name: str, hint: str) -> None:
    assert hint in refused(name, use).hint


@pytest.mark.parametrize(
    ("use", "name", "uses"),
    [
        ("table", "consumer", "spark.readStream"),
        ("stream", "jobId", "df.write"),
        ("sink", "jobId", "df.write"),
        ("write", "maxMessagesPerTrigger", "spark.readStream"),
        ("table", "orderBy", "df.write and df.writeStream"),
        ("stream", "checkpointLocation", "df.writeStream"),
    ],
)
def test_an_option_of_another_use_says_whose_it_is(use: Use, name: str, uses: str) -> None:
    require_known_somewhere({name: ""})
    assert refused(name, use).hint == f"it is an option of {uses}"


def test_a_name_like_no_other_lists_those_that_there_are() -> None:
    hint = refused("xyzzy", "sink").hint
    assert all(name in hint for name in OPTIONS["sink"])
    require_known({"includeHeaders": "true"}, "stream")  # Kafka's name, too
    with pytest.raises(strictq.InvalidArgument, match="there is no option xyzzy ") as e:
        require_known_somewhere({"xyzzy": ""})
    assert all(name in e.value.hint for names in OPTIONS.values() for name in names)


def test_the_names_that_hints_speak_of_exist() -> None:
    every = {name for names in OPTIONS.values() for name in names}
    for name, hint in ELSEWHERE.items():
        assert name == name.lower()
        assert name not in {each.lower() for each in every}, "it would never be looked up"
        assert hasattr(hint, "code") or hint in every
