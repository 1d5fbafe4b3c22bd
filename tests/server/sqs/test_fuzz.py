"""Whatever a client sends, the endpoint answers with an error of SQS: no 5xx, no traceback.

The long form: python -m tests.campaigns sqsfuzz.
"""

from __future__ import annotations

import logging

import pytest

from strictq.testing import SqsEndpoint
from tests.server.sqs.playing import JSON, Endpoint
from tests.support.sqs_fuzz import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_no_request_is_an_internal_failure(sqs_endpoint: SqsEndpoint, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with Endpoint(sqs_endpoint.url, JSON, sqs_endpoint.clock.advance) as endpoint:
        found = fuzz(endpoint, 500, seed)
    assert not found.failures
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert found.statuses[200] > 50
    assert found.statuses[400] > 50, "too few requests are wrong"
