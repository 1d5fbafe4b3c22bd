"""The members of a chain: show, form, add and drop them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import attrs

from .._store.api import Storage
from .._values import hints
from .._values.errors import ConfigError, Diverged, InvalidArgument, QueueNotFound, StrictqError
from .._values.findings import ChainMember, Members
from .electing import Reach, decide
from .membership import Votes
from .places import parse, replica_at
from .replica_home import LIVE, ReplicaState, given_path, is_replica
from .voting import MEMBERS_MAX, Membership, Question, VoterState


def members(
    path: str | os.PathLike[str],
    *,
    form: Sequence[str] = (),
    add: str | None = None,
    drop: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    authority: str | os.PathLike[str] | None = None,
    plaintext: bool = False,
) -> Members:
    """Return the members of a chain, on the host of one of them, or change them.

    A majority of the members decides on each change, and on each promotion. This call informs members that missed a decision.

    Args:
        path: the directory of the queue or of a replica.
        form: the replicas of a queue without a chain, as "tcps://HOST:PORT". The queue is the first member.
        add: a replica to add. It must already receive.
        drop: a replica to drop. No call waits for it from then on, and it can't be promoted.
        token_file: a file with the token of all replicas.
        authority: a PEM file with the CA certificates for theirs; None: the system's trusted CAs.
        plaintext: allow connections without TLS to other machines, for a private network.
    Raises:
        QueueNotFound: there is no queue and no replica at the path.
        InvalidArgument: the change is invalid; nothing was changed.
        ConfigError: the queue is not replicated, or has no chain.
        Diverged: a new member has other data; nothing was changed.
        NotElected: no majority answers, or this host is no longer a member; nothing was changed.
        TargetUnavailable: a new member can't be reached; nothing was changed.
    Source: docs/howto/replication.md
    """
    home = given_path(path, "path must be a queue or a replica's directory")
    if sum((bool(form), add is not None, drop is not None)) > 1:
        raise InvalidArgument("use only one of form, add and drop: members change one at a time")
    home = home_of(home)
    reach = Reach(token_file, authority)
    for each in (*form, *(() if add is None else (add,))):
        if token_file is not None:
            replica_at(each, token_file=token_file, plaintext=plaintext)  # stored addresses are not checked again
    votes = Votes(home)
    if form:
        _form(home, votes, reach, [parse(each) for each in form])
    state = votes.look()
    if state is None or state.decided is None:
        raise ConfigError(f"{home} is not a member of a chain; nothing was changed", hint=hints.FORM_CHAIN)
    if add is not None:
        _add(votes, reach, parse(add), state.decided)
    if drop is not None:
        _drop(votes, reach, parse(drop))
    return _shown(home, votes, reach)


def home_of(path: Path) -> Path:
    """Return the directory with the votes of this queue or replica.

    Raises:
        QueueNotFound: there is neither.
    """
    if is_replica(path):
        return path
    if path.name == LIVE and is_replica(path.parent):
        return path.parent
    if Storage.facts(path) is None:
        raise QueueNotFound(f"there is no queue at {path}")
    return path


def _form(home: Path, votes: Votes, reach: Reach, addresses: list[str]) -> None:
    queue = home
    if is_replica(home):
        if ReplicaState.read(home).role != "promoted":
            raise InvalidArgument(f"{home} is a replica: form the chain where its primary is; nothing was changed")
        queue = home / LIVE
    if not 0 < len(set(addresses)) == len(addresses) < MEMBERS_MAX:
        raise InvalidArgument(f"a chain has 1 to {MEMBERS_MAX - 1} different replicas; nothing was changed")
    facts = Storage.facts(queue)
    replication = None if facts is None else facts.replication
    if facts is None or replication is None or not replication.ships:
        raise ConfigError(f"{queue} has no replica; nothing was changed", hint=hints.CONFIGURE_AGAIN)
    known = votes.look()
    if known is not None and known.decided is not None:
        if known.decided.primary == known.id:
            if sorted(address for _, address in known.decided.members if address) != sorted(addresses):
                raise InvalidArgument("the queue already has a chain: add or drop members one at a time", hint=hints.SHOW_MEMBERS)
            return
        votes.leave_chain()  # it was promoted by force, so it is no longer a member of the old chain
    with votes.held() as state:
        own = state.id
    others = [(_id_of(reach, each, facts.queue_id, replication.history_id), each) for each in addresses]
    first = Membership(1, replication.term, facts.queue_id, ((own, ""), *others), own, replication.history_id)
    for _, address in others:
        _teach(reach, address, first)
    votes.answered(Question("learn", first))


def _id_of(reach: Reach, address: str, queue_id: str, history_id: str) -> str:
    """Return the id of a replica of this queue.

    Raises:
        Diverged: it belongs to another queue or history, or is still empty.
    """
    with closing(reach.at(address)) as target:
        found = target.identity()
        if found is None or (found["queue_id"], found["history_id"]) != (queue_id, history_id):
            raise Diverged(f"{address} does not receive this history of the queue; nothing was changed", hint=hints.FEED_FIRST)
        return target.vote(Question("look")).state.id


def _teach(reach: Reach, address: str, first: Membership) -> None:
    said = reach.ask(address, Question("learn", first))
    if not said.yes:
        raise Diverged(f"{address} was a member of another chain; nothing was changed", hint=hints.EMPTY_TARGET)


def _add(votes: Votes, reach: Reach, address: str, decided: Membership) -> None:
    new = _id_of(reach, address, decided.queue_id, decided.history_id)

    def change(decided: Membership, _own: str) -> Membership:
        if (new, address) in decided.members:
            return decided
        if new in decided.ids or address in dict(decided.members).values() or len(decided.members) >= MEMBERS_MAX:
            raise InvalidArgument(
                f"{address} can't be added: it is a member under another name, or another replica was, or there are "
                f"{MEMBERS_MAX} members; nothing was changed", hint=hints.SHOW_MEMBERS,
            )  # fmt: skip
        return _changed(decided, (*decided.members, (new, address)))

    decide(votes, reach, change)


def _drop(votes: Votes, reach: Reach, address: str) -> None:
    state = votes.look()
    assert state is not None
    assert state.decided is not None
    gone = {each: member for member, each in state.decided.members}.get(address)

    def change(decided: Membership, _own: str) -> Membership:
        if gone is None or gone not in decided.ids:
            if address in dict(decided.members).values():
                raise InvalidArgument(f"{address} is now another replica; nothing was changed", hint=hints.SHOW_MEMBERS)
            return decided
        if gone == decided.primary:
            raise InvalidArgument("the primary can't be dropped: promote a replica; nothing was changed", hint=hints.SHOW_MEMBERS)
        return _changed(decided, tuple(each for each in decided.members if each[0] != gone))

    if gone is None:
        raise InvalidArgument(f"{address} is not a member; nothing was changed", hint=hints.SHOW_MEMBERS)
    decide(votes, reach, change)


def _changed(decided: Membership, others: tuple[tuple[str, str], ...]) -> Membership:
    return attrs.evolve(decided, version=decided.version + 1, members=others)


def _shown(home: Path, votes: Votes, reach: Reach) -> Members:
    """Return the members' knowledge of the membership, after informing those that missed a decision."""
    state = votes.look()
    assert state is not None
    assert state.decided is not None
    found = {state.id: state}
    errors: dict[str, str] = {}
    if reach.token_file is not None:
        for member, address in state.decided.members:
            if member != state.id and address:
                try:
                    found[member] = reach.ask(address, Question("learn", state.decided)).state
                except StrictqError as e:
                    errors[member] = str(e)
    newest = max((each.decided for each in found.values() if each.decided is not None), key=lambda each: each.version)
    votes.answered(Question("learn", newest))
    return Members(
        path=str(home),
        queue_id=newest.queue_id,
        version=newest.version,
        term=newest.term,
        members=tuple(
            ChainMember(
                address=address or None, primary=member == newest.primary, here=member == state.id,
                version=_version(found.get(member)), error=errors.get(member),
            )
            for member, address in newest.members
        ),
    )  # fmt: skip


def _version(state: VoterState | None) -> int | None:
    return None if state is None or state.decided is None else state.decided.version


def is_dropped(queue: Path, address: str) -> bool:
    """Return whether the chain of this queue has dropped the replica at an address, which then can't be promoted."""
    try:
        state = Votes(home_of(queue)).look()
    except StrictqError:
        return False
    decided = None if state is None else state.decided
    if state is None or decided is None or decided.primary != state.id:
        return False
    return address not in dict(decided.members).values()
