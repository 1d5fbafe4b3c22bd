"""Errors of the SQS interface: their names in both protocols, and their statuses."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "AWS.SimpleQueueService."
OLD_CODES: Final = {
    "QueueDoesNotExist": f"{PREFIX}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
} | {
    name: PREFIX + name
    for name in (
        "TooManyEntriesInBatchRequest",
        "EmptyBatchRequest",
        "BatchEntryIdsNotDistinct",
        "InvalidBatchEntryId",
        "BatchRequestTooLong",
        "QueueDeletedRecently",
        "PurgeQueueInProgress",
        "UnsupportedOperation",
    )
}
"""Codes of the query protocol that differ from the shapes' names. The JSON protocol has them in a header."""
STATUSES: Final = {
    "PurgeQueueInProgress": 403,
    "ResourceNotFoundException": 404,
    "ServiceUnavailable": 503,
    "InternalFailure": 500,
}
"""HTTP statuses other than 400."""
NO_QUEUE: Final = "The specified queue does not exist."
EXPIRED: Final = "The receipt handle has expired."


class SqsError(Exception):
    """A refusal of a request or of one entry of a batch.

    Attributes:
        code: the shape's name, as in the JSON protocol.
        old: the code of the query protocol.
        status: the HTTP status of a refused request.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.old = OLD_CODES.get(code, code)
        self.status = STATUSES.get(code, 400) if status is None else status

    @property
    def side(self) -> str:
        """Whose fault it is: "Sender" or "Receiver"."""
        return "Sender" if self.status < 500 else "Receiver"

    def entry(self, name: str) -> dict[str, object]:
        """Return the entry of a batch's `Failed` list with this id."""
        return {"Id": name, "SenderFault": self.status < 500, "Code": self.old, "Message": self.message}


def invalid(message: str) -> SqsError:
    """Return the error of a wrong parameter."""
    return SqsError("InvalidParameterValueException", message)


def bad(value: object, name: str, reason: str) -> SqsError:
    """Return the error of a wrong parameter, with its value and the reason."""
    return invalid(f"Value {value} for parameter {name} is invalid. Reason: {reason}")


def missing(name: str) -> SqsError:
    """Return the error of a missing parameter."""
    return SqsError("MissingRequiredParameterException", f"The request must contain the parameter {name}.")


def no_queue() -> SqsError:
    """Return the error of an unknown queue."""
    return SqsError("QueueDoesNotExist", NO_QUEUE)


def expired(handle: str) -> SqsError:
    """Return the error of a receipt handle of a FIFO queue that is not the newest, or too late."""
    return bad(handle, "ReceiptHandle", EXPIRED)
