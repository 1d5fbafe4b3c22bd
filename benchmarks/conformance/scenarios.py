"""Situations that users of queues complain about, each as a function that runs any queue through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, Literal

import attrs

from benchmarks.measure import report_of, signal_to
from benchmarks.peers.peer import Feature, NotOffered

from .stage import Stage, one_by_one, receive_again, send, texts

DEEP: Final = 2000
CONSUMERS: Final = 4
TAKEN: Final = 400
SENT: Final = 20


Harm = Literal["", "lost", "reordered", "doubled"]


@attrs.frozen
class Seen:
    """An observation, and whether it is the desired one.

    Attributes:
        harm: the harm to a message, if it is not: the message was lost; or delivered before an earlier one of its key
            was done; or delivered again although it was done or held. Empty otherwise, such as for a message that only waits.
    """

    good: bool
    text: str
    harm: Harm = ""


@attrs.frozen(kw_only=True)
class Scenario:
    """A situation.

    Attributes:
        title: the behaviour of a queue that passes.
        needs: the features that a queue must claim for a deviation to count as a failure.
        racy: the observation depends on timing, and may differ in a repetition.
    """

    name: str
    title: str
    run: Callable[[Stage], Seen]
    needs: tuple[Feature, ...] = ()
    racy: bool = False


def harm(asked: list[str], taken: list[str]) -> Harm:
    """Return the worst harm in what was delivered, if all of `asked` was to be delivered in this order."""
    if Counter(asked) - Counter(taken):
        return "lost"
    if Counter(taken) - Counter(asked):
        return "doubled"
    return "" if asked == taken else "reordered"


def harm_beside(held: str, others: list[str]) -> Harm:
    """Return the harm in what another consumer received while this message was held."""
    if held in others:
        return "doubled"
    return "reordered" if any(body[0] == held[0] for body in others) else ""


def order(stage: Stage) -> Seen:
    peer = stage.open()
    send(peer, "a1", "b1", "a2", "b2", "a3")
    taken = one_by_one(peer)
    wrong = harm(["a1", "a2", "a3", "b1", "b2"], taken_in_order(taken))
    return Seen(not wrong, f"handed out {' '.join(taken)}", wrong)


def taken_in_order(taken: list[str]) -> list[str]:
    """Sort by key, keeping the order of delivery within a key."""
    return sorted(taken, key=lambda body: body[0])


def restart(stage: Stage) -> Seen:
    peer = stage.open()
    send(peer, *(f"{key}{n}" for n in range(1, 6) for key in "ab"))
    taken = one_by_one(peer, most=3)
    peer.close()
    taken += one_by_one(stage.open(recover=True))
    wrong = harm([f"{key}{n}" for key in "ab" for n in range(1, 6)], taken_in_order(taken))
    return Seen(not wrong, f"handed out {' '.join(taken)}", wrong)


def one_holder(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1", "a2", "b1")
    held = texts(first, first.receive(1))
    others = texts(second, second.receive(5))
    good = held == ["a1"] and others == ["b1"]
    text = f"while one held {' '.join(held)}, the other received {' '.join(others) or 'nothing'}"
    return Seen(good, text, harm_beside("a1", others))


def other_keys(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1", "b1", "c1")
    first.receive(1)
    others = texts(second, second.receive(5))
    text = f"the other consumer received {' '.join(others) or 'nothing'}"
    return Seen(others == ["b1", "c1"], text, harm_beside("a1", others))


def deep_backlog(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    first.send(first.native([("a", b"a%d" % n) for n in range(1, DEEP + 1)]))
    send(first, "b1")
    first.receive(1)
    others = texts(second, second.receive(10))
    good = "b1" in others
    text = f"the other consumer received {', '.join(others[:3])}{' …' if len(others) > 3 else ''}"
    return Seen(good, text, "" if good else harm_beside("a1", others))


def nack_keeps_order(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1", "a2", "b1")
    (held,) = first.receive(1)
    first.nack(held)
    taken = one_by_one(second)
    wrong = harm(["a1", "a2", "b1"], taken_in_order(taken))
    return Seen(not wrong, f"after a nack of a1: {' '.join(taken)}", wrong)


def redrive_keeps_order(stage: Stage) -> Seen:
    peer = stage.open()
    send(peer, "a1", "a2", "a3")
    (held,) = peer.receive(1)
    peer.reject(held)
    peer.redrive()
    taken = one_by_one(peer)
    wrong = harm(["a1", "a2", "a3"], taken)
    return Seen(not wrong, f"after a redrive of a1: {' '.join(taken)}", wrong)


def lease_ends(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1")
    first.receive(1)
    stage.pass_a_lease()
    taken = texts(second, second.receive_again(1))
    return Seen(taken == ["a1"], f"the other consumer received {' '.join(taken) or 'nothing'}")


def late_ack_refused(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1")
    held = first.receive(1)
    stage.pass_a_lease()
    second.receive_again(1)
    outcome = "was not refused"
    try:
        first.ack(held)
    except Exception as error:
        outcome = f"got {type(error).__name__}"
    second.close()  # it dies before its own ack
    stage.pass_a_lease()
    third = stage.open()
    left = texts(third, third.receive_again(1))
    good = left == ["a1"] and outcome != "was not refused"
    text = f"the late ack {outcome}; the message {'was kept' if left else 'was lost'} when its holder died"
    return Seen(good, text, "" if left else "lost")


def late_effects(stage: Stage) -> Seen:
    first, second = stage.open(), stage.open()
    send(first, "a1")
    (held,) = first.receive(1)
    (effect,) = first.native([("b", b"b1")])
    stage.pass_a_lease()
    second.receive_again(1)
    try:
        first.finish(held, effect)
    except NotOffered:
        raise
    except Exception:
        pass  # refused, in the queue's own words
    happened = texts(peer := stage.open(), peer.receive(10)) == ["b1"]
    return Seen(
        not happened, f"the late consumer's send {'happened' if happened else 'did not happen'}, while another was at work"
    )


def late_ack_honoured(stage: Stage) -> Seen:
    first = stage.open()
    send(first, "a1")
    held = first.receive(1)
    stage.pass_a_lease()
    first.ack(held)
    second = stage.open()
    left = texts(second, second.receive_again(1))
    return Seen(not left, "done" if not left else "handed out again after its ack", "doubled" if left else "")


def killed_worker(stage: Stage) -> Seen:
    sender = stage.open()
    send(sender, "a1")
    sender.close()
    received = stage.killed_while_holding(1)
    stage.pass_a_lease()
    left = texts(peer := stage.open(recover=True), receive_again(peer, 1))
    return Seen(received == 1 and left == ["a1"], f"the message {'came again' if left else 'was lost'}", "" if left else "lost")


def killed_sender(stage: Stage) -> Seen:
    with stage.process("peer-send", number=SENT) as process:
        for _ in range(SENT):
            report_of(process)
        process.kill()
        process.wait()
    stage.host.kill()
    taken = one_by_one(stage.open())
    wrong = harm([str(n) for n in range(SENT)], taken)
    return Seen(not wrong, f"{len(taken)} of {SENT} were there", wrong)


def several_processes(stage: Stage) -> Seen:
    sender = stage.open()
    sender.send(sender.native([(f"k{n % 50}", b"%d" % n) for n in range(TAKEN)]))
    taken: Counter[str] = Counter()
    with ExitStack() as stack:
        processes = [stack.enter_context(stage.process("peer-take")) for _ in range(CONSUMERS)]
        for p in processes:
            report_of(p)
        for p in processes:
            signal_to(p)
        for p in processes:
            taken.update(report_of(p)["taken"])
    twice = sum(1 for count in taken.values() if count > 1)
    missing = TAKEN - len(taken)
    text = f"of {TAKEN}, {twice} were delivered twice and {missing} not at all"
    return Seen(not twice and not missing, text, "lost" if missing else "doubled" if twice else "")


def acked_stays_acked(stage: Stage) -> Seen:
    first = stage.open()
    send(first, "a1", "a2")
    first.ack(first.receive(1))
    first.receive(1)  # held, so that a recovery has something to recover
    first.close()
    stage.pass_a_lease()
    taken = texts(peer := stage.open(recover=True), receive_again(peer, 10))
    # If a1 was delivered again, a2 may still wait behind it.
    wrong: Harm = "doubled" if "a1" in taken else harm(["a2"], taken)
    return Seen(not wrong, f"after a restart: {' '.join(taken) or 'nothing, not even the unacked messages'}", wrong)


def batch_mates(stage: Stage) -> Seen:
    sender = stage.open()
    send(sender, "a1", "a2", "a3")
    sender.close()
    stage.killed_while_holding(3)
    stage.pass_a_lease()
    peer = stage.open()
    (handed, *_) = peer.receive_again(1)
    attempt = peer.attempt(handed)
    return Seen(attempt == 1, f"a message that was never started was at attempt {attempt}")


def dedup(stage: Stage) -> Seen:
    peer = stage.open()
    for message in peer.native([("a", b"a1")] * 2):
        peer.send_once(message, "id-1")
    taken = one_by_one(peer)
    wrong = harm(["a1"], taken)
    return Seen(not wrong, f"sent twice under one id: handed out {len(taken)} time{'' if len(taken) == 1 else 's'}", wrong)


def purge_forgets_ids(stage: Stage) -> Seen:
    peer = stage.open()
    (message,) = peer.native([("a", b"a1")])
    peer.send_once(message, "id-1")
    peer.purge()
    peer.send_once(message, "id-1")
    taken = one_by_one(peer)
    wrong = harm(["a1"], taken)
    return Seen(not wrong, f"sent again after a purge: handed out {len(taken)} time{'' if len(taken) == 1 else 's'}", wrong)


def hand_on(stage: Stage) -> Seen:
    peer = stage.open()
    one, two = peer.native([("b", b"b1"), ("b", b"b2")])
    send(peer, "a1")
    with suppress(ZeroDivisionError):
        peer.hand_on(one, fail=True)
    stage.pass_a_lease()
    broken = texts(other := stage.open(), handed := receive_again(other, 10))
    other.ack(handed)
    send(peer, "a2")
    peer.hand_on(two, fail=False)
    whole = one_by_one(peer)
    wrong = harm(["a1"], broken) or harm(["b2"], whole)
    text = f"broken off: {' '.join(broken) or 'nothing'} left; completed: {' '.join(whole) or 'nothing'} left"
    return Seen(not wrong, text, wrong)


SCENARIOS: Final[dict[str, Scenario]] = {
    s.name: s
    for s in (
        Scenario(name="order", title="one consumer receives the messages of a key in send order", run=order),
        Scenario(name="restart", title="a restart keeps the order and loses no message", run=restart),
        Scenario(
            name="one-holder",
            run=one_holder,
            needs=("order per key",),
            title="while one consumer holds a message of a key, no other receives the key's next one",
        ),
        Scenario(name="other-keys", run=other_keys, title="an unacked message does not stall other keys"),
        Scenario(
            name="deep-backlog",
            run=deep_backlog,
            needs=("order per key",),
            title=f"a key with {DEEP:,} messages, the first of them in flight, keeps its order and does not starve another key",
        ),
        Scenario(
            name="nack", run=nack_keeps_order, needs=("nack",), title="a nacked message is delivered before later ones of its key"
        ),
        Scenario(
            name="redrive",
            run=redrive_keeps_order,
            needs=("dead letters", "redrive"),
            title="a redriven dead letter is delivered before later messages of its key",
        ),
        Scenario(
            name="lease-end",
            run=lease_ends,
            needs=("lease",),
            title="a message whose lease expires is delivered to another consumer",
        ),
        Scenario(
            name="late-ack",
            run=late_ack_refused,
            needs=("lease", "fencing"),
            title="a late ack is refused if another consumer holds the message",
        ),
        Scenario(
            name="late-effects",
            run=late_effects,
            needs=("lease", "fencing", "atomic hand-on"),
            title="effects that a late consumer commits with its ack are refused, too",
        ),
        Scenario(
            name="late-ack-alone",
            run=late_ack_honoured,
            needs=("lease", "ack"),
            title="a late ack succeeds if no other consumer received the message",
        ),
        Scenario(
            name="killed-worker", run=killed_worker, needs=("ack",), title="kill -9 after a receive does not lose the message"
        ),
        Scenario(
            name="killed-sender", run=killed_sender, title="a completed send survives kill -9 of the process that stores the data"
        ),
        Scenario(
            name="processes",
            run=several_processes,
            needs=("several processes",),
            racy=True,
            title=f"{CONSUMERS} processes receive every message, each exactly once",
        ),
        Scenario(
            name="acked",
            run=acked_stays_acked,
            needs=("ack",),
            title="after a restart, unacked messages are delivered again, and acked ones are not",
        ),
        Scenario(
            name="batch-mates",
            run=batch_mates,
            needs=("attempts", "lease"),
            title="if a consumer dies, messages of its batch that it had not begun are not counted as attempted",
        ),
        Scenario(name="dedup", run=dedup, needs=("dedup",), title="a repeated send with the same dedup id is stored once"),
        Scenario(name="purge", run=purge_forgets_ids, needs=("dedup",), title="a purge also deletes the dedup ids"),
        Scenario(
            name="hand-on",
            run=hand_on,
            needs=("atomic hand-on",),
            title="an ack and a send commit atomically",
        ),
    )
}
