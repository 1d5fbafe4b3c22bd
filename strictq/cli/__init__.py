"""The `strictq` command: one module per group of commands, imported when one of them is used.

Exit codes: 0 success · 1 failure or problems found · 2 invalid usage or input · 130 Ctrl-C · 141 the reader of the
output has exited · 128 + n ended by signal n.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click

__all__ = ["app", "main"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "create": ("configuring", "Create a queue."),
    "send": ("send", "Send the lines of a file or stdin as messages."),
    "receive": ("receive", "Print messages and ack them."),
    "run": ("run", "Run the Python handlers and schedules of a strictq.App."),
    "work": ("work", "Run a command for each message, in order per key."),
    "forward": ("forward", "Send the messages of a queue to an SQS-compatible endpoint."),
    "stats": ("stats", "Show counts, ages and rates of a queue."),
    "alarm": ("alarm", "Exit with code 1 if a queue reaches any of the given limits."),
    "top-keys": ("looking", "List the keys with the most or oldest messages."),
    "explain": ("looking", "Show whether a key is blocked, why, and since when."),
    "peek": ("looking", "Show the next messages of a key."),
    "status": ("looking", "Show the state of one message."),
    "wait": ("looking", "Wait until a message is ready, without receiving it."),
    "output": ("looking", "Print the kept output of a finished message."),
    "dead": ("looking", "List dead letters."),
    "history": ("history", "List, export or plot finished messages."),
    "consumers": ("consumers", "List the running workers, joined loops and streams of a queue."),
    "leases": ("consumers", "List the live leases: which consumer holds which key."),
    "shards": ("shards", "Show who owns which keys, and move them between shards."),
    "tenants": ("tenants", "List the tenants of a queue with their messages and limits."),
    "limit": ("tenants", "Set the weight, rates or pause of a tenant."),
    "query": ("looking", "Query your own app_* tables with SQL."),
    "redrive": ("operating", "Return dead letters to their original position."),
    "hold": ("operating", "Stop delivering the messages of a key."),
    "release": ("operating", "End a hold, or (--consumer) release the batches of a Spark stream."),
    "pause": ("operating", "Stop all receives, or the handlers of one type."),
    "resume": ("operating", "End a pause."),
    "sideline": ("operating", "Let new messages pass a backlog."),
    "reject": ("operating", "Dead-letter individual messages."),
    "resolve": ("operating", "Ack individual messages on behalf of their consumer."),
    "purge": ("operating", "Delete the messages of a key or queue, except those in flight."),
    "config": ("configuring", "Show or change settings."),
    "check": ("check", "Verify a queue's files; repair or salvage them."),
    "migrate": ("migrating", "Upgrade a queue to the current file format."),
    "replicate": ("replicating", "Replicate a queue to a directory, S3 or another host."),
    "replica": ("receiving", "Keep a replica of another host's queue on this host."),
    "promote": ("receiving", "Turn a replica into a queue after its primary is lost."),
    "merge": ("merging", "Merge the old primary's changes into the promoted queue."),
    "members": ("receiving", "Show or change the members of a chain of replicas."),
    "backup": ("merging", "Copy a queue while it is in use."),
    "adopt": ("merging", "Give a copied queue a new identity."),
    "replicas": ("replicating", "List a queue's replicas, and the points to restore it to."),
    "restore": ("replicating", "Restore a queue from a replica."),
    "serve": ("serve", "Serve queues over HTTP: SQS, a console, metrics."),
    "bench": ("bench", "Measure throughput on your disk."),
    "demo": ("demo", "Run a demo that kills a consumer and verifies the order."),
}
"""Every command in the order of the help: its module, and a one-line description."""

COMPLETE: Final = "_STRICTQ_COMPLETE"
"""Set by a shell that requests completions."""


def app() -> click.Group:
    """Return the command line application.

    Raises:
        ModuleNotFoundError: click is not installed.
    """
    from strictq.cli._group import root

    return root


def main() -> None:
    """Run the `strictq` command."""
    gc.disable()  # until all modules of a command are imported (_group.py): none of their objects is garbage
    try:
        from strictq.cli._group import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130  # during the imports; later, commands handle it themselves
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if not missing or missing == "strictq" or missing in sys.stdlib_module_names:
            raise
        print(f'strictq: the command needs {missing}: pip install "strictq[cli]"', file=sys.stderr)
        code = 2
    sys.exit(code)
