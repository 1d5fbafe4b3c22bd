"""The roles of child processes: `python -m benchmarks.child ROLE ARGUMENTS`, with reports as JSON lines on stdout.

strictq is imported inside the roles, because one of them measures its import.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final


def _report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def importing() -> None:
    """Measure the import."""
    started = time.perf_counter()
    import strictq

    _ = strictq.open
    _report(**{"import": time.perf_counter() - started})


def opening(path: str) -> None:
    """Measure opening a queue, and receiving a first message."""
    import strictq

    started = time.perf_counter()
    with strictq.open(path, create=False) as q:
        opened = time.perf_counter()
        (d,) = q.receive(1)
        first = time.perf_counter()
        d.lease.release()
    _report(open=opened - started, first=first - started)


def looking(path: str) -> None:
    """Measure opening a queue read-only, and counting its messages."""
    import strictq

    started = time.perf_counter()
    with strictq.open(path, read_only=True) as q:
        q.stats()
        _report(stats=time.perf_counter() - started)


def memory(path: str, number: int, keys: int, batch: int) -> None:
    """Measure the resident memory of a process that opens a queue and works with it."""
    import strictq

    from .measure import resident_mib
    from .workload import life, messages

    imported = resident_mib()
    with strictq.open(path, create=False) as q:
        q.stats()
        opened = resident_mib()
        for start in range(0, number, batch):
            life(q, messages(batch, keys, seed=start), batch)
        now = resident_mib()
    if imported is None or opened is None or now is None:
        _report(peak=None)
    else:
        _report(imported=imported[0], opened=opened[0], now=now[0], peak=now[1])


def everything(path: str, number: int, keys: int, batch: int, seed: int) -> None:
    """Send, receive and ack at a signal, together with other processes, until the queue is empty."""
    import strictq

    from .measure import grown, prebuilt, written_bytes
    from .workload import messages

    with strictq.open(path, create=False) as q, prebuilt():
        todo = messages(number, keys, seed)
        _report(ready=True)
        sys.stdin.readline()
        before, started, ended, acked = written_bytes(), time.perf_counter(), 0.0, 0
        for start in range(0, number, batch):
            q.send_many(todo[start : start + batch])
            if ds := q.receive(batch):
                q.ack_many(ds)
                acked += len(ds)
        # The remaining messages are ready, or leased by another process; wait as long as there are any.
        ended = time.perf_counter()
        while ds := q.receive(batch, wait=0.05):
            q.ack_many(ds)
            acked += len(ds)
            ended = time.perf_counter()
        written = grown(before, written_bytes())
    _report(acked=acked, started=started, ended=ended, written=written)


def replica(path: str, token_file: str) -> None:
    """Receive for a replica until stdin is closed."""
    import strictq

    with strictq.Replica(path, token_file=token_file) as receiving:
        _report(address=receiving.address)
        sys.stdin.read()


def load(path: str, durability: str, keys: int, batch: int) -> None:
    """Keep a queue busy until stdin is closed."""
    import strictq

    from .measure import prebuilt
    from .workload import busy_messages, keep_busy

    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    todo = busy_messages(keys, batch, 1)
    with strictq.open(path, create=False, durability="full" if durability == "full" else "process") as q, prebuilt():
        threading.Thread(target=wait_for_the_end, daemon=True).start()
        _report(ready=True)
        keep_busy(q, todo, batch, stop)


def send_times(path: str, number: int) -> None:
    """Send the current time repeatedly to a worker in another process."""
    import strictq

    with strictq.open(path, create=False) as q:
        for _ in range(number):
            time.sleep(0.03)
            q.send(b"%r" % time.monotonic(), key="k")
    _report(sent=number)


def idle_worker(path: str, seconds: float) -> None:
    """Measure the processor time of an idle worker."""
    import strictq

    with strictq.open(path, create=False) as q:
        worker = strictq.Worker(q, lambda _job: None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        time.sleep(0.2)
        before = time.process_time()
        time.sleep(seconds)
        used = time.process_time() - before
        worker.stop()
        thread.join()
    _report(used=used)


def holding_worker(path: str) -> None:
    """Measure the memory that a worker adds to its process while 8 handlers run and all other lanes wait."""
    import strictq

    from .measure import resident_mib

    with strictq.open(path, create=False) as q:
        full, go = threading.Semaphore(0), threading.Event()

        def process(_job: Any) -> None:
            full.release()
            go.wait(30.0)

        worker = strictq.Worker(q, process)
        before = resident_mib()
        thread = threading.Thread(target=worker.run)
        thread.start()
        for _ in range(8):
            full.acquire(timeout=30.0)
        time.sleep(0.2)
        after, held = resident_mib(), worker.stats().buffered + 8
        worker.stop()
        go.set()
        thread.join()
    _report(grown=None if before is None or after is None else after[0] - before[0], held=held)


def staging(path: str, job: str, rows: int, files: int, body_bytes: int) -> None:
    """Stage rows with a key of their own each, as Spark's tasks do."""
    import numpy as np
    import pyarrow as pa

    from strictq._store.api import Staging, new_run

    place, run, staged = Staging(Path(path), f"job {job}"), new_run(), []
    schema = pa.schema({"key": pa.binary(), "body": pa.binary()})
    for numbers in np.array_split(np.arange(rows), files):
        name, file = place.create(0, run)
        with file, pa.ipc.new_stream(file, schema) as writer:
            for at in range(0, len(numbers), 10_000):
                keys = [b"s%d" % n for n in numbers[at : at + 10_000].tolist()]
                writer.write_batch(
                    pa.record_batch([pa.array(keys), pa.array([k.ljust(body_bytes) for k in keys])], schema=schema)
                )
        staged.append((name, len(numbers)))
    _report(files=staged)


def committing(path: str, job: str, files: list[tuple[str, int]]) -> None:
    """Measure the memory that the process where Spark commits takes to turn staged rows into messages."""
    import strictq
    from strictq._store.api import Token
    from strictq.spark._apply import StagedFile, apply

    from .measure import resident_mib

    started = time.perf_counter()
    with strictq.open(path, create=False) as q:
        apply(q, Token.job(job), [StagedFile(*file) for file in files], skip_others=False)
    memory = resident_mib()
    _report(peak=None if memory is None else memory[1], seconds=time.perf_counter() - started)


def _of_peers(role: str) -> Callable[..., None]:
    """Return a role of the comparison with peers, imported when it runs, because other roles measure imports."""

    def run(**arguments: Any) -> None:
        from .peers import roles

        getattr(roles, role)(_report, **arguments)

    return run


ROLES: Final[dict[str, Callable[..., None]]] = {
    "import": importing,
    "open": opening,
    "stats": looking,
    "memory": memory,
    "everything": everything,
    "replica": replica,
    "load": load,
    "send-times": send_times,
    "idle-worker": idle_worker,
    "holding-worker": holding_worker,
    "staging": staging,
    "committing": committing,
    "peer-everything": _of_peers("everything"),
    "peer-backlog": _of_peers("backlog"),
    "peer-receive": _of_peers("receive_and_wait"),
    "peer-send": _of_peers("send_and_wait"),
    "peer-take": _of_peers("take_everything"),
}


def main(role: str, arguments: str) -> None:
    values = json.loads(arguments)
    if "path" in values:
        values["path"] = str(Path(values["path"]).resolve())
    ROLES[role](**values)


if __name__ == "__main__":
    main(*sys.argv[1:])
