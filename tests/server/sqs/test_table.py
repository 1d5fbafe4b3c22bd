"""The table of cases is a table: each case has a name of its own, a source, and steps."""

from collections import Counter

from tests.server.sqs.cases import CASES


def test_each_case_has_a_name_of_its_own_and_a_source() -> None:
    assert len(CASES) >= 150
    assert [name for name, times in Counter(c.name for c in CASES).items() if times > 1] == []
    assert [
        c.name for c in CASES if not c.source.startswith(("AWS API reference: ", "SQS developer guide: ", "LocalStack tests/"))
    ] == []
    assert [c.name for c in CASES if not c.steps] == []
