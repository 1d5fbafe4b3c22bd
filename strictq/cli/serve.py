"""`strictq serve`."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from strictq._net.transport import read_token
from strictq._platform.extras import need
from strictq.cli._arguments import PATH, Durability, durability_option, json_option
from strictq.cli._command import OK, USAGE, Failure, command, tell
from strictq.cli._words import emit

EXAMPLES: Final = """
strictq serve orders.strictq
strictq serve console orders.strictq invoices.strictq --port 8080 --allow-actions
strictq serve metrics /var/lib/queues --host 0.0.0.0 --token-file token
strictq serve sqs /var/lib/sqs
strictq serve sqs --memory
"""
WHAT: Final = ("sqs", "console", "metrics", "all")


@command(EXAMPLES)
@click.argument(
    "words",
    nargs=-1,
    metavar="[sqs|console|metrics|all] DIR...",
    help="What to serve (default: all), and the directories: queues, or directories that contain queues.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=9324, help="The port to listen at; 0: any free port.")
@click.option("--host", default="127.0.0.1", help="The address to listen at.")
@click.option("--memory", is_flag=True, help="Keep the queues of the SQS endpoint in memory, for tests.")
@durability_option("The failures that sends survive in queues that the server creates.")
@click.option("--allow-actions", is_flag=True, help="Let the console change queues, such as redrive dead letters.")
@click.option("--token-file", type=PATH, metavar="FILE", help="The file with the token that the console and metrics require.")
@click.option(
    "--keys-file",
    type=PATH,
    metavar="FILE",
    help="The file with access keys, a line each: ID SECRET. SQS requests must be signed.",
)
@click.option(
    "--host-name", "host_names", multiple=True, metavar="NAME", help="Accept this value of the Host header, too. May be repeated."
)
@click.option(
    "--allow-origin",
    "allow_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin call the server, such as https://ops.example. May be repeated.",
)
@click.option(
    "--aws-waits", is_flag=True, help="Refuse what SQS refuses for a minute: re-creating a deleted queue, and a second purge."
)
@click.option("--insecure", is_flag=True, help="Listen at an address that other machines reach, without a token or keys.")
@json_option
def serve(
    words: tuple[str, ...], port: int, host: str, memory: bool, durability: Durability | None, allow_actions: bool,
    token_file: Path | None, keys_file: Path | None, host_names: tuple[str, ...], allow_origins: tuple[str, ...],
    aws_waits: bool, insecure: bool, as_json: bool,
) -> int:  # fmt: skip
    """Serve queues over HTTP: an SQS endpoint, a console, and metrics for Prometheus.

    Only programs of this machine reach it, unless --host says otherwise. Another address needs --token-file for the console and
    metrics, and --keys-file for SQS. SIGTERM or Ctrl-C end waiting requests, finish running ones, and stop the server.
    A directory with the name sqs, console, metrics or all is written ./sqs.
    """
    what, directories = _parsed(words)
    if not directories and not (what == "sqs" and memory):
        hint = "or serve queues in memory: strictq serve sqs --memory" if what in ("sqs", "all") else ""
        raise Failure("give a directory", USAGE, hint)
    for package in ("uvicorn", "httptools"):
        need(package, "server")
    # Imported late: they import uvicorn.
    from strictq.server.app import PARTS, Application, parts_of
    from strictq.server.parts import ServerContext, ServerSettings
    from strictq.server.running import HttpServer

    for directory in directories:
        if what != "sqs" and not directory.is_dir():
            raise Failure(f"there is no directory {directory}", USAGE)
    context = ServerContext(ServerSettings(
        directories=directories, host=host, port=port, memory=memory,
        durability=None if durability is None else durability.value, allow_actions=allow_actions,
        token=None if token_file is None else read_token(token_file), keys={} if keys_file is None else _keys(keys_file),
        host_names=host_names, allow_origins=allow_origins, aws_waits=aws_waits, insecure=insecure,
    ))  # fmt: skip
    parts = parts_of([what] if what != "all" else _fitting(PARTS, directories, memory=memory), context)
    server = HttpServer(Application(parts, context))
    names = [part.name for part in parts]

    def ready() -> None:
        if as_json:
            emit({"url": server.url, "parts": names, "pid": os.getpid()})
        else:
            tell(f"serving {', '.join(names)} at {server.url}; Ctrl-C stops it")
        if insecure:
            tell("strictq: --insecure: every program that reaches this address can use the queues")

    server.run(ready)
    return OK


def _fitting(names: Sequence[str], directories: Sequence[Path], *, memory: bool) -> list[str]:
    """Return the parts that can be served, and report the one that cannot."""
    from strictq.server.queues import is_queue

    if not memory and (len(directories) != 1 or is_queue(directories[0])):
        why = "it needs one directory, in which it creates queues"
    elif find_spec("botocore") is None:
        why = 'pip install "strictq[sqs]"'
    else:
        return list(names)
    tell(f"strictq: without the SQS endpoint: {why}")
    return [name for name in names if name != "sqs"]


def _parsed(words: tuple[str, ...]) -> tuple[str, tuple[Path, ...]]:
    what, rest = (words[0], words[1:]) if words and words[0] in WHAT else ("all", words)
    return what, tuple(Path(word) for word in rest)


def _keys(path: Path) -> dict[str, str]:
    """Return the access keys of a file.

    Raises:
        Failure: the file cannot be read, other users can read it, or a line has another form.
    """
    try:
        with path.open(encoding="ascii") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise Failure(f"{path} can be read by other users", USAGE, f"chmod 600 {path}")
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as e:
        raise Failure(f"{path} can't be read: {e.strerror if isinstance(e, OSError) else 'it is not ASCII text'}", USAGE) from e
    if not lines or any(len(line) != 2 for line in lines):
        raise Failure(f"{path} must have lines with an access key id and a secret", USAGE)
    return {line[0]: line[1] for line in lines}
