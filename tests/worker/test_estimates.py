"""What is learned of durations, from known relations and from nonsense."""

from __future__ import annotations

import asyncio
import math
import random
from pathlib import Path
from typing import Any

import pytest

import strictq
from strictq import DurationEstimate, InvalidArgument, Worker
from strictq._values.durations import Model
from strictq.worker.estimates import Estimates, Margin


def test_nothing_learned_is_unknown() -> None:
    assert Model().predict(1.0) is None
    assert Estimates().of_process(None, 1.0) is None


def test_a_known_relation_is_learned_from_noisy_data() -> None:
    model, r = Model(), random.Random(1)
    for _ in range(500):
        size = r.uniform(1, 100)
        model.learn(size, (0.010 + 0.002 * size) * r.lognormvariate(0, 0.2))
    for size in (5, 50, 95):
        assert model.predict(size) == pytest.approx(0.010 + 0.002 * size, rel=0.25)
    assert model.slope == pytest.approx(0.002, rel=0.2)


def test_it_follows_a_change() -> None:
    model = Model()
    for _ in range(200):
        model.learn(1.0, 0.1)
    for _ in range(500):
        model.learn(1.0, 0.5)
    assert model.predict(1.0) == pytest.approx(0.5, rel=0.1)


def test_equal_sizes_give_the_mean() -> None:
    model = Model()
    for seconds in (1.0, 3.0):
        model.learn(7.0, seconds)
    assert model.slope == 0.0
    assert model.predict(1e9) == pytest.approx(2.0)


def test_one_lie_does_not_spoil_it() -> None:
    model, r = Model(), random.Random(2)
    for _ in range(200):
        size = r.uniform(1, 10)
        model.learn(size, size * r.uniform(0.009, 0.011))
    model.learn(5.0, 1000.0)
    assert model.predict(5.0) == pytest.approx(0.05, rel=0.2)


def test_a_prediction_is_never_negative() -> None:
    model = Model()
    for size in range(1, 50):
        model.learn(100.0 + size, 0.1 * size)
    assert model.predict(0.0) == 0.0


@pytest.mark.parametrize(
    ("size", "seconds"), [(1.0, -1.0), (1.0, math.nan), (math.nan, 1.0), (-1.0, 1.0), (1.0, math.inf), (math.inf, 1.0)]
)
def test_nonsense_is_not_learned_or_does_no_harm(size: float, seconds: float) -> None:
    model = Model()
    for n in range(20):
        model.learn(float(n), 1.0)
    model.learn(size, seconds)
    predicted = model.predict(10.0)
    assert predicted is not None
    assert math.isfinite(predicted)


def test_a_nan_or_huge_size_is_predicted_as_something() -> None:
    model = Model()
    model.learn(1.0, 2.0)
    model.learn(2.0, 3.0)
    for size in (math.nan, 1e300):
        predicted = model.predict(size)
        assert predicted is not None
        assert math.isfinite(predicted)


def test_the_stored_form() -> None:
    model = Model()
    for n in range(20):
        model.learn(float(n), 0.1 * n)
    assert Model.from_json(model.to_json()) == model


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"samples": "x"}', '{"samples": 1, "mean_seconds": NaN}', '{"odd": 1}']
)
def test_a_damaged_form_is_nothing_learned(text: str) -> None:
    assert Model.from_json(text) == Model()


def test_the_margin_is_zero_where_nothing_is_wrong() -> None:
    margin = Margin()
    assert margin.seconds == 0.0
    for _ in range(50):
        margin.learn(0.0)
    assert margin.seconds == 0.0


def test_the_margin_grows_with_the_error_and_shrinks_again() -> None:
    margin, r = Margin(), random.Random(3)
    for _ in range(100):
        margin.learn(r.uniform(-0.1, 0.1))
    wide = margin.seconds
    assert 0.05 < wide < 0.3
    for _ in range(200):
        margin.learn(r.uniform(-0.001, 0.001))
    assert margin.seconds < wide / 5


def test_what_the_message_says_goes_first() -> None:
    estimates = Estimates(given_process=2.0)
    estimates.process.learn(1.0, 9.0)
    assert estimates.of_process(1.5, 1.0) == 1.5
    assert estimates.of_process(None, 1.0) == 2.0
    assert Estimates(process=estimates.process).of_process(None, 1.0) == 9.0


def test_they_are_kept_with_the_queue_and_can_be_reset(tmp_path: object) -> None:
    path = f"{tmp_path}/queue"
    with strictq.open(path, durability="process") as q:
        for n in range(20):
            q.send(b"x", key=n % 3)
        worker = Worker(q, lambda job: None, prepare=lambda job: None)
        worker.run(drain=True)
        learned = worker.stats().process
        assert learned.samples == 20
    with strictq.open(path, durability="process") as q:
        again = Worker(q, lambda job: None)
        stats = again.stats()
        assert stats.process == learned
        assert stats.prepare.samples == 20
        again.reset_estimates()
        assert again.stats().process.samples == 0
        assert Worker(q, lambda job: None).stats().process.samples == 0


def test_stats_show_them_and_everybody_can_reset_them(make: Any, tmp_path: Path) -> None:
    q = make()
    assert q.stats().process == q.stats().prepare == DurationEstimate()
    for n in range(30):
        q.send(b"x", key=n % 3, size_hint=float(n))
    worker = Worker(q, lambda job: None)
    worker.run(drain=True)
    learned = q.stats().process
    assert learned == worker.stats().process
    assert (learned.samples, learned.mean_size) == (30, pytest.approx(14.5))
    assert learned.mean_seconds > 0.0
    assert q.stats().prepare.samples == 0
    if q.path != ":memory:":
        with strictq.open(q.path, read_only=True) as looking:
            assert looking.stats().process == learned

        async def awaited() -> None:
            async with strictq.open_async(q.path) as aq:
                assert (await aq.stats()).process == learned
                await aq.reset_estimates()
                assert (await aq.stats()).process.samples == 0

        asyncio.run(awaited())
    else:
        q.reset_estimates()
    assert q.stats().process.samples == 0, "also what another object of the queue did"


def test_a_worker_at_work_forgets_what_somebody_else_reset(make: Any) -> None:
    q = make()
    for n in range(20):
        q.send(b"x", key=n)
    first = Worker(q, lambda job: None)
    first.run(drain=True)
    q.send(b"x", key=1)
    worker = Worker(q, lambda job: q.reset_estimates())
    worker.run(drain=True)
    assert worker.stats().process.samples == 0
    assert q.stats().process.samples == 0


def test_a_read_only_queue_can_not_reset_them(tmp_path: Path) -> None:
    strictq.open(tmp_path / "queue").close()
    with strictq.open(tmp_path / "queue", read_only=True) as q, pytest.raises(strictq.ReadOnlyQueue):
        q.reset_estimates()


def test_without_learning_nothing_is_kept(q: strictq.Queue) -> None:
    q.send(b"x", key=1)
    worker = Worker(q, lambda job: None, learn=False)
    worker.run(drain=True)
    assert worker.stats().process.samples == 0
    assert q._storage.estimates() == {}


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, True, "1"])
@pytest.mark.parametrize("name", ["process_seconds", "prepare_seconds"])
def test_estimates_given_must_be_seconds(q: strictq.Queue, name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Worker(q, lambda job: None, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"size_hint": math.nan}, {"process_seconds": -1.0}, {"prepare_seconds": math.nan}])
def test_a_message_with_a_wrong_hint_is_refused_at_its_send(q: strictq.Queue, options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        q.send(b"x", key=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"samples": Infinity}',
        '{"samples": 1, "mean_size": "x"}',
        '{"samples": 1, "surprise": 1}',
        "[]",
        "",
    ],
)
def test_what_can_not_be_read_is_learned_again(text: str) -> None:
    assert Model.from_json(text) == Model()


@pytest.mark.parametrize(("given", "expected"), [(None, 3.0), (1.0, 1.0), (0.0, 0.0)])
def test_a_worker_expects_what_it_was_given_or_else_what_the_queue_says(given: float | None, expected: float) -> None:
    estimates = Estimates(given_process=given)
    estimates.process.learn(1.0, 9.0)
    estimates.take_defaults(strictq.QueueConfig(process_seconds=3.0))
    assert estimates.of_process(None, 1.0) == expected
    assert estimates.of_process(0.5, 1.0) == 0.5, "what the message says goes before"
    assert estimates.of_prepare(None, 1.0) is None


def test_a_worker_that_runs_expects_what_the_queue_says() -> None:
    """Seen by when it prepares: given that process takes long, it does not prepare ahead of its turn."""
    with strictq.open(":memory:", config=strictq.QueueConfig(process_seconds=30.0, prepare_seconds=0.001)) as q:
        q.send_many([strictq.Message(b"", key="k") for _ in range(3)])
        order: list[str] = []
        worker = Worker(
            q, lambda job: order.append(f"process {job.seq}"), lambda job: order.append(f"prepare {job.seq}"), concurrency=1
        )
        worker.run(drain=True)
    assert order == [f"{stage} {n}" for n in (1, 2, 3) for stage in ("prepare", "process")]


@pytest.mark.parametrize("keys", [30, 300])
def test_a_message_is_estimated_about_once(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many slots become free before its turn."""
    estimated: list[float] = []
    genuine = Estimates.of_process

    def counted(self: Estimates, given: float | None, size: float) -> float | None:
        estimated.append(size)
        return genuine(self, given, size)

    monkeypatch.setattr(Estimates, "of_process", counted)
    with strictq.open(":memory:") as q:
        q.send_many([strictq.Message(b"", key=n % keys) for n in range(600)])
        Worker(q, lambda job: None, lambda job: None, prepare_seconds=0.0, process_seconds=0.0).run(drain=True)
    assert len(estimated) <= 2 * 600
