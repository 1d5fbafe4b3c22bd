"""The 23 actions of SQS."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from ..._platform.clock import MICROSECONDS, Clock
from ..._values.errors import QueueClosed, StoreError, StrictqError
from ..._values.types import Receipt
from ..queues import Queues
from . import rules
from .catalogue import ACCOUNT, Catalogue, Entry, arn_of
from .errors import SqsError, bad, invalid, missing, no_queue
from .moves import Moves
from .opened import OpenedQueue, OpenQueues
from .received import Taken, Wanted

MINUTE_SECONDS: Final = 60.0
POLICY_VERSION: Final = "2008-10-17"

Parameters = Mapping[str, Any]
Answer = dict[str, Any]


def refusal(e: BaseException) -> SqsError:
    """Return the error that a client gets for an error of the queue.

    SDKs repeat what is answered with 503: a full disk, a busy or a quarantined shard, an unknown outcome, a queue that is being
    deleted.
    """
    if isinstance(e, SqsError):
        return e
    if isinstance(e, StoreError | QueueClosed) or (isinstance(e, StrictqError) and e.transient):
        return SqsError("ServiceUnavailable", str(e))
    return SqsError("InternalFailure", "The request has failed because of an unknown error.")


class Caller(NamedTuple):
    """Who sent a request.

    Attributes:
        base: what URLs of queues begin with.
        receive: returns when the client has gone.
    """

    base: str
    receive: Callable[[], Awaitable[object]]


class ReceivedAnswer(Answer):
    """The answer of a receive, whose messages can be given back if the client has gone."""

    def __init__(self, opened: OpenedQueue, taken: list[Taken]) -> None:
        super().__init__({"Messages": [each.answer for each in taken]} if taken else {})
        self._opened = opened
        self._taken = taken

    def give_back(self) -> None:
        """Make the messages visible again."""
        self._opened.polls.give_back(self._taken)


class Actions:
    """The actions, as methods of their names in snake case. Each takes the checked parameters and the caller."""

    def __init__(
        self,
        catalogue: Catalogue,
        durability: Literal["full", "process"],
        clock: Clock,
        *,
        waits: bool,
        version: str,
        shown: Queues | None,
    ) -> None:
        """Prepare the actions, in the running event loop.

        Args:
            waits: a name can be used again, and a queue be purged again, only after a minute.
        """
        self._catalogue = catalogue
        self._clock = clock
        self._waits = waits
        self._version = version
        self._changing = asyncio.Lock()
        self._deleted: dict[str, float] = {}
        self._purged: dict[str, float] = {}
        self.queues = OpenQueues(catalogue, durability, clock, shown)
        self.moves = Moves(catalogue, self.queues, self._write, clock)

    def forget(self) -> None:
        """Forget which names were deleted and which queues purged in the last minute."""
        self._deleted.clear()
        self._purged.clear()

    # ---- helpers

    def _entry(self, parameters: Parameters) -> Entry:
        entry = self._catalogue.entries.get(parameters["QueueUrl"].rstrip("/").rpartition("/")[2])
        if entry is None:
            raise no_queue()
        return entry

    async def _opened(self, parameters: Parameters) -> OpenedQueue:
        return await self.queues.get(self._entry(parameters))

    async def _on_disk(self, write: Callable[[], Any]) -> None:
        """Write to the catalogue, outside of the event loop if that waits for the disk."""
        if self._catalogue.directory is None:
            write()
        else:
            await asyncio.to_thread(write)

    async def _write(self, entry: Entry, **changes: Any) -> None:
        await self._on_disk(partial(self._catalogue.change, entry, **changes))

    def _seconds(self) -> int:
        return self._clock.wall() // MICROSECONDS

    def _checked(self, name: str, given: Mapping[str, str], old: Mapping[str, str]) -> dict[str, str]:
        fifo = rules.is_fifo(name)

        def redrive(text: str) -> str:
            return str(rules.checked_redrive(text, fifo=fifo, source=arn_of(name), target=self._target))

        return rules.checked_attributes(name, given, old, redrive)

    def _target(self, arn: str) -> Mapping[str, str] | None:
        entry = self._catalogue.find(arn)
        return None if entry is None else entry.attributes

    # ---- queues

    async def create_queue(self, parameters: Parameters, caller: Caller) -> Answer:
        name, given = parameters["QueueName"], parameters.get("Attributes", {})
        rules.check_name(name, given)
        async with self._changing:
            attributes = self._checked(name, given, {})
            entry = self._catalogue.entries.get(name)
            if entry is not None:
                for key in given:
                    if entry.values.get(key) != attributes.get(key):
                        raise SqsError(
                            "QueueNameExists",
                            f"A queue already exists with the same name and a different value for attribute {key}",
                        )
            else:
                self._require_minute(
                    self._deleted, name, "QueueDeletedRecently",
                    "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
                )  # fmt: skip
                tags = _checked_tags(name, parameters.get("tags", {}), {})
                entry = Entry(name, attributes, tags, self._seconds(), self._seconds())
                await self._on_disk(partial(self._catalogue.save, entry))
        return {"QueueUrl": _url(caller.base, name)}

    async def delete_queue(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            entry = self._entry(parameters)
            await self._write(entry, deleted=True)
            self._catalogue.entries.pop(entry.name, None)
            await self.queues.drop(entry)
            await self._on_disk(partial(self._catalogue.remove, entry))
            self._note_minute(self._deleted, entry.name)
            self._purged.pop(entry.name, None)
        return {}

    def _require_minute(self, since: dict[str, float], name: str, code: str, message: str) -> None:
        if not self._waits:
            return
        now = time.monotonic()
        for other in [other for other, at in since.items() if at <= now - MINUTE_SECONDS]:
            del since[other]
        if name in since:
            raise SqsError(code, message)

    def _note_minute(self, since: dict[str, float], name: str) -> None:
        if self._waits:
            since[name] = time.monotonic()

    async def get_queue_url(self, parameters: Parameters, caller: Caller) -> Answer:
        if parameters["QueueName"] not in self._catalogue.entries:
            raise no_queue()
        return {"QueueUrl": _url(caller.base, parameters["QueueName"])}

    async def list_queues(self, parameters: Parameters, caller: Caller) -> Answer:
        prefix = parameters.get("QueueNamePrefix", "")
        names = list(self._catalogue.entries)  # a thread may add one meanwhile
        return _page((name for name in names if name.startswith(prefix)), parameters, caller.base, "QueueUrls")

    async def list_dead_letter_source_queues(self, parameters: Parameters, caller: Caller) -> Answer:
        names = self._catalogue.sources(self._entry(parameters))
        return {"queueUrls": [], **_page(names, parameters, caller.base, "queueUrls")}

    async def get_queue_attributes(self, parameters: Parameters, _caller: Caller) -> Answer:
        entry = self._entry(parameters)
        names = parameters.get("AttributeNames", ())
        for name in names:
            if name != "All" and name not in rules.KNOWN:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        found = dict(entry.values)
        if "All" in names or any(name.startswith("Approximate") for name in names):
            opened = await self.queues.get(entry)
            visible, hidden, delayed = await opened.calls.run(opened.served.counts)
            found |= {
                "ApproximateNumberOfMessages": str(visible),
                "ApproximateNumberOfMessagesNotVisible": str(hidden),
                "ApproximateNumberOfMessagesDelayed": str(delayed),
            }
        found |= {
            "QueueArn": entry.arn,
            "CreatedTimestamp": str(entry.created),
            "LastModifiedTimestamp": str(entry.modified),
        }
        if rules.VERSION in names:
            found[rules.VERSION] = self._version
        if "All" not in names:
            found = {name: value for name, value in found.items() if name in names}
        return {"Attributes": found} if found else {}

    async def set_queue_attributes(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            entry = self._entry(parameters)
            attributes = self._checked(entry.name, parameters["Attributes"], entry.attributes)
            await self._write(entry, attributes=attributes, modified=self._seconds())
            opened = await self.queues.get(entry)
            await opened.calls.run(opened.served.configure)
            opened.polls.changed()
        return {}

    async def purge_queue(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        name = opened.entry.name
        self._require_minute(
            self._purged, name, "PurgeQueueInProgress", f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
        )
        self._note_minute(self._purged, name)
        await opened.calls.run(opened.served.purge)
        return {}

    # ---- tags and permissions

    async def tag_queue(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            entry = self._entry(parameters)
            if not parameters["Tags"]:
                raise missing("Tags")
            await self._write(entry, tags=_checked_tags(entry.name, parameters["Tags"], entry.tags))
        return {}

    async def untag_queue(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            entry = self._entry(parameters)
            keys = parameters["TagKeys"]
            if not keys:
                raise invalid("Tag keys must be between 1 and 128 characters in length.")
            await self._write(entry, tags={key: value for key, value in entry.tags.items() if key not in keys})
        return {}

    async def list_queue_tags(self, parameters: Parameters, _caller: Caller) -> Answer:
        tags = self._entry(parameters).tags
        return {"Tags": tags} if tags else {}

    async def add_permission(self, parameters: Parameters, _caller: Caller) -> Answer:
        if not parameters["Actions"]:
            raise missing("Actions")
        if not parameters["AWSAccountIds"]:
            raise bad([], "PrincipalId", "Unable to verify.")
        async with self._changing:
            entry = self._entry(parameters)
            label = parameters["Label"]
            statement = {
                "Sid": label,
                "Effect": "Allow",
                "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in parameters["AWSAccountIds"]])},
                "Action": _one_or_all([f"SQS:{action}" for action in parameters["Actions"]]),
                "Resource": entry.arn,
            }
            before = _statements(entry)
            if any(each.get("Sid") == label for each in before):
                raise bad(label, "Label", "Already exists.")
            await self._permit(entry, [*before, statement])
        return {}

    async def remove_permission(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            entry = self._entry(parameters)
            label = parameters["Label"]
            before = _statements(entry)
            left = [each for each in before if each.get("Sid") != label]
            if len(left) == len(before):
                raise bad(label, "Label", "can't find label.")
            await self._permit(entry, left)
        return {}

    async def _permit(self, entry: Entry, statements: list[Any]) -> None:
        attributes = {name: value for name, value in entry.attributes.items() if name != "Policy"}
        if statements:
            policy = {"Version": POLICY_VERSION, "Id": f"{entry.arn}/SQSDefaultPolicy", "Statement": statements}
            attributes["Policy"] = json.dumps(policy)
        await self._write(entry, attributes=attributes)

    # ---- messages

    async def send_message(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        entry, served = opened.entry, opened.served
        content = rules.content(parameters, entry.values, fifo=entry.fifo)
        (sent,) = await opened.calls.send([served.message(content)])
        if not isinstance(sent, Receipt):
            raise sent
        opened.polls.changed()
        return {**content.answer, **served.sent(sent)}

    async def send_message_batch(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        entry, served = opened.entry, opened.served
        entries = rules.entries(parameters, "SendMessageBatch")
        rules.check_batch_size(entries)
        good: list[tuple[str, rules.Content]] = []
        failed: list[Answer] = []
        broken: set[str] = set()
        for each in entries:
            if entry.fifo:
                rules.require_ids(each, entry.values, in_batch=True)
        for each in entries:
            group = each.get("MessageGroupId", "")
            try:
                if entry.fifo and group in broken:  # order in a group has no gaps
                    raise invalid("An earlier entry of this message group was refused. Nothing was sent.")
                good.append((each["Id"], rules.content(each, entry.values, fifo=entry.fifo)))
            except SqsError as e:
                broken.add(group)
                failed.append(e.entry(each["Id"]))
        sent = await opened.calls.send([served.message(content) for _, content in good]) if good else []
        done = []
        for (name, content), outcome in zip(good, sent, strict=True):
            if isinstance(outcome, Receipt):
                done.append({"Id": name, **content.answer, **served.sent(outcome)})
            else:
                failed.append(refusal(outcome).entry(name))
        if done:
            opened.polls.changed()
        return _batch(done, failed)

    async def receive_message(self, parameters: Parameters, caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        wanted, wait = _wanted(parameters, opened.entry)
        taken = await opened.polls.receive(wanted, wait, caller.receive)
        return ReceivedAnswer(opened, taken)

    async def delete_message(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        (error,) = await opened.calls.delete([parameters["ReceiptHandle"]])
        if error is not None:
            raise error
        opened.polls.changed()
        return {}

    async def delete_message_batch(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        entries = rules.entries(parameters, "DeleteMessageBatch")
        outcomes = await opened.calls.delete([each["ReceiptHandle"] for each in entries])
        opened.polls.changed()
        return _settled(entries, outcomes)

    async def change_message_visibility(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        change = parameters["ReceiptHandle"], rules.visibility(parameters["VisibilityTimeout"])
        (error,) = await opened.calls.run(opened.served.change, [change])
        if error is not None:
            raise error
        opened.polls.changed()
        return {}

    async def change_message_visibility_batch(self, parameters: Parameters, _caller: Caller) -> Answer:
        opened = await self._opened(parameters)
        entries = rules.entries(parameters, "ChangeMessageVisibilityBatch")
        outcomes: dict[str, BaseException | None] = {}
        changes = {}
        for each in entries:
            try:
                changes[each["Id"]] = each["ReceiptHandle"], rules.visibility(each.get("VisibilityTimeout"))
            except SqsError as e:
                outcomes[each["Id"]] = e
        changed = await opened.calls.run(opened.served.change, list(changes.values()))
        outcomes |= dict(zip(changes, changed, strict=True))
        opened.polls.changed()
        return _settled(entries, [outcomes[each["Id"]] for each in entries])

    # ---- move tasks

    async def start_message_move_task(self, parameters: Parameters, _caller: Caller) -> Answer:
        async with self._changing:
            return {"TaskHandle": await self.moves.start(parameters)}

    async def list_message_move_tasks(self, parameters: Parameters, _caller: Caller) -> Answer:
        return {"Results": self.moves.listed(parameters)}

    async def cancel_message_move_task(self, parameters: Parameters, _caller: Caller) -> Answer:
        return {"ApproximateNumberOfMessagesMoved": await self.moves.cancel(parameters["TaskHandle"])}


Act = Callable[[Parameters, Caller], Awaitable[Answer]]


def _url(base: str, name: str) -> str:
    return f"{base}/{ACCOUNT}/{name}"


def _page(names: Iterable[str], parameters: Parameters, base: str, member: str) -> Answer:
    """Return one page of URLs. The token of the next one is the last name of this one."""
    most = parameters.get("MaxResults")
    if most is not None:
        rules.between(most, "MaxResults", 1, rules.PAGE_MAX)
    after = parameters.get("NextToken", "")
    found = sorted(name for name in names if name > after)
    page = found[: most or rules.PAGE_MAX]
    answer: Answer = {member: [_url(base, name) for name in page]} if page else {}
    if most is not None and len(found) > most:
        answer["NextToken"] = page[-1]
    return answer


def _checked_tags(name: str, given: Mapping[str, str], old: Mapping[str, str]) -> dict[str, str]:
    tags = {**old, **given}
    if len(tags) > rules.TAGS_MAX:
        raise invalid(f"Too many tags added for queue {name}.")
    for key, value in given.items():
        if not 1 <= len(key) <= rules.TAG_KEY_CHARS_MAX:
            raise invalid("Tag keys must be between 1 and 128 characters in length.")
        if len(value) > rules.TAG_VALUE_CHARS_MAX:
            raise invalid("Tag values must be between 0 and 256 characters in length.")
    return tags


def _one_or_all(values: list[str]) -> str | list[str]:
    """Return the values as AWS writes them into a policy: a single one is not a list."""
    return values[0] if len(values) == 1 else values


def _statements(entry: Entry) -> list[Any]:
    found = json.loads(entry.attributes.get("Policy", "{}")).get("Statement", [])
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


def _wanted(parameters: Parameters, entry: Entry) -> tuple[Wanted, int]:
    """Return what a receive asks for, and how many seconds it waits."""
    most = rules.between(parameters.get("MaxNumberOfMessages", 1), "MaxNumberOfMessages", 1, rules.BATCH_MAX)
    wait = parameters.get("WaitTimeSeconds")
    wait = entry.number("ReceiveMessageWaitTimeSeconds") if wait is None else rules.wait_seconds(wait)
    visibility = parameters.get("VisibilityTimeout")
    visibility = (
        entry.number("VisibilityTimeout")
        if visibility is None
        else rules.between(visibility, "VisibilityTimeout", 0, rules.VISIBILITY_SECONDS_MAX)
    )
    attempt = parameters.get("ReceiveRequestAttemptId")
    if attempt is not None:
        rules.valid_id(attempt, "ReceiveRequestAttemptId")
    system = frozenset((*parameters.get("AttributeNames", ()), *parameters.get("MessageSystemAttributeNames", ())))
    return Wanted(most, visibility, system, tuple(parameters.get("MessageAttributeNames", ())), attempt), wait


def _settled(entries: Sequence[Parameters], outcomes: Sequence[BaseException | None]) -> Answer:
    done = [{"Id": each["Id"]} for each, e in zip(entries, outcomes, strict=True) if e is None]
    failed = [refusal(e).entry(each["Id"]) for each, e in zip(entries, outcomes, strict=True) if e is not None]
    return _batch(done, failed)


def _batch(done: list[Answer], failed: list[Answer]) -> Answer:
    answer: Answer = {}
    if done:
        answer["Successful"] = done
    if failed:
        answer["Failed"] = failed
    return answer
