"""Redis streams through redis-py: one stream, one consumer group, and a separate server on a unix socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import Durability, processor_seconds, resident_mib, written_bytes

from .peer import About, Host, Opening, Peer

STREAM: Final = "queue"
GROUP: Final = "consumers"
SOCKET_FILE: Final = "socket"
"""The file in the queue's directory with the path of the server's socket.

A socket's path must be short; a directory's may be long.
"""
APPENDFSYNC: Final[dict[Durability, str]] = {"full": "always", "process": "no"}
"""What survives what: `always` syncs before it answers. `no` has written before it answers, so a kill -9 loses nothing, as at
strictq's "process". (`everysec` may hold a write back while a sync is under way, so a kill -9 may lose what was answered.)"""
START_SECONDS: Final = 30.0


class Server(Host):
    """A redis-server with its append-only file in a directory."""

    def __init__(self, directory: Path, durability: Durability) -> None:
        self._directory, self._durability = directory, durability
        self._place = tempfile.mkdtemp(prefix="sq-redis-")
        self.socket = os.path.join(self._place, "s")
        (directory / SOCKET_FILE).write_text(self.socket, encoding="utf-8")
        try:
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self._place, ignore_errors=True)
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        import redis

        arguments = {
            "port": "0",
            "unixsocket": self.socket,
            "unixsocketperm": "600",
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": APPENDFSYNC[self._durability],
            "save": "",
            "daemonize": "no",
            "logfile": str(self._directory / "redis.log"),
        }
        command = ["redis-server", *(part for name, value in arguments.items() for part in (f"--{name}", value))]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with redis.Redis(unix_socket_path=self.socket) as client:
            end = time.monotonic() + START_SECONDS
            while True:
                try:
                    client.ping()  # refused while it loads its file
                    break
                except (redis.ConnectionError, redis.BusyLoadingError) as error:
                    if process.poll() is not None or time.monotonic() > end:
                        process.kill()
                        process.wait()
                        raise RuntimeError(f"redis-server did not start, exit code {process.returncode}") from error
                    time.sleep(0.01)
            with suppress(redis.ResponseError):  # the group exists already
                client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        return process

    def written(self) -> int | None:
        """Return the bytes that the server wrote, without those written to sockets."""
        import redis

        with redis.Redis(unix_socket_path=self.socket) as client:
            sent = int(client.info("stats")["total_net_output_bytes"])
        all_of_it = written_bytes(self._process.pid)
        return None if all_of_it is None else all_of_it - sent

    def beside(self) -> float | None:
        return processor_seconds(self._process.pid)

    def resident(self) -> tuple[float, float] | None:
        return resident_mib(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._place, ignore_errors=True)


class Redis(Peer):
    about = About(
        name="Redis streams",
        distributions=("redis", "hiredis"),
        kind="server",
        sends="in one pipeline",
        receives="in one call",
        acks="in one MULTI (XACK and XDEL)",
        offers=frozenset({"ack", "lease", "atomic hand-on", "several processes"}),
        remark="redis-server on a unix socket; appendonly yes, no snapshots, appendfsync always for full and no for process; "
        "everything it holds is in its memory",
    )

    def __init__(self, opening: Opening) -> None:
        import redis

        socket = (opening.directory / SOCKET_FILE).read_text(encoding="utf-8")
        self.r = redis.Redis(unix_socket_path=socket)
        self._consumer = f"{os.getpid()}-{id(self)}"
        self._idle_milliseconds = 0 if opening.recover else round(opening.lease_seconds * 1000)

    @classmethod
    @contextmanager
    def hosted(cls, directory: Path, durability: Durability) -> Iterator[Host]:
        server = Server(directory, durability)
        try:
            yield server
        finally:
            server.stop()

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("redis-server") is None:
            return "there is no redis-server here (Debian, Ubuntu: apt-get install redis-server)"
        return super().missing()

    def settings(self) -> dict[str, str]:
        read = {name: str(self.r.config_get(name)[name]) for name in ("appendonly", "appendfsync", "save")}
        return {**read, "redis-server": str(self.r.info("server")["redis_version"])}

    def durable_at(self, settings: dict[str, str]) -> Durability | None:
        if settings["appendonly"] != "yes":
            return None
        return next((d for d, value in APPENDFSYNC.items() if value == settings["appendfsync"]), None)

    @staticmethod
    def native(pairs: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        return [{"k": key, "b": body} for key, body in pairs]

    @staticmethod
    def content(handed: Any) -> tuple[str, bytes]:
        fields = handed[1]
        return fields[b"k"].decode(), fields[b"b"]

    def send(self, todo: Sequence[Any]) -> None:
        if len(todo) == 1:
            self.r.xadd(STREAM, todo[0])
            return
        with self.r.pipeline(transaction=False) as pipeline:
            for fields in todo:
                pipeline.xadd(STREAM, fields)
            pipeline.execute()

    def receive(self, number: int) -> list[Any]:
        answer = self.r.xreadgroup(GROUP, self._consumer, {STREAM: ">"}, count=number)
        return _entries(answer)

    def ack(self, handed: Sequence[Any]) -> None:
        ids = [h[0] for h in handed]
        with self.r.pipeline(transaction=True) as pipeline:
            pipeline.xack(STREAM, GROUP, *ids)
            pipeline.xdel(STREAM, *ids)
            pipeline.execute()

    def close(self) -> None:
        self.r.close()

    def receive_again(self, number: int) -> list[Any]:
        _, handed, *_ = self.r.xautoclaim(STREAM, GROUP, self._consumer, self._idle_milliseconds, count=number)
        return list(handed)

    def attempt(self, handed: Any) -> int:
        (pending,) = self.r.xpending_range(STREAM, GROUP, handed[0], handed[0], 1)
        return int(pending["times_delivered"])

    def purge(self) -> None:
        self.r.xtrim(STREAM, maxlen=0, approximate=False)

    def finish(self, handed: Any, message: Any, *, fail: bool = False) -> None:
        with self.r.pipeline(transaction=True) as pipeline:
            pipeline.xack(STREAM, GROUP, handed[0])
            pipeline.xdel(STREAM, handed[0])
            pipeline.xadd(STREAM, message)
            if fail:
                raise ZeroDivisionError
            pipeline.execute()


def _entries(answer: Any) -> list[Any]:
    """Return the entries of the only stream in an answer: a dictionary in newer protocols, a list of pairs in older ones."""
    if not answer:
        return []
    if isinstance(answer, dict):
        (value,) = answer.values()
        # The newer protocol wraps the list of a stream's entries in another list.
        return list(value[0]) if len(value) == 1 and isinstance(value[0], list) else list(value)
    ((_, value),) = answer
    return list(value)
