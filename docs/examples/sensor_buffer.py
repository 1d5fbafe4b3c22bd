"""A buffer for sensor readings on a device that dies without warning. Run it: python sensor_buffer.py

A child process takes readings and puts them into the queue; another one uploads them to a server that is not always there.
We kill both with kill -9, again and again, and then compare what the server has with what the sensor was told is stored.

What this shows, and what it cannot show: a process that is killed loses what it had in its own memory. What it gave to the
operating system stays: so both durabilities survive it. A power cut takes what the operating system had not yet written,
and no kill simulates that. What then is left is in the table that this prints; it was tested on recorded disks, see
docs/explanation/reliability.md.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import strictq
from strictq import QueueConfig

SENSORS, ROUNDS, READINGS, UPLOADS = 3, 2, 40, 10  # the latter two in each round, before the kills
CONFIG = QueueConfig(
    lease_seconds=0.5,
    max_attempts=None,  # a network that is down is not the reading's fault
    retry_delay_seconds=0.01,
    retry_delay_max_seconds=0.05,
    max_depth=100_000,  # bounds the disk
)
TABLE = """
                        kill -9 of the process    power cut
durability="full"       nothing is lost           nothing is lost, if the disk keeps what it says it has synced
durability="process"    nothing is lost           the newest readings, and acks, so some are uploaded again;
                                                  what is left is whole and in order
"""


def measure(path, durability):
    """The child that takes readings for ever. It tells us of a reading once `send` has returned, and not before."""
    with strictq.open(path, durability=durability) as q:
        while True:
            for n in range(SENSORS):
                receipt = q.send(b"%.1f" % random.gauss(20.0, 5.0), key=f"sensor-{n}")
                print(json.dumps([receipt.key, receipt.seq]), flush=True)


def upload(path, durability, server):
    """The child that uploads: to a file, which stands for a server. One time in ten the network is down."""
    with strictq.open(path, durability=durability) as q, open(server, "a", encoding="utf-8") as network:
        for d in q.consume(wait=1.0):
            try:
                with d:
                    if random.random() < 0.1:
                        raise ConnectionError("no network")
                    print(json.dumps([d.key, d.seq, d.body.decode()]), file=network, flush=True)
                    print(flush=True)  # so that we know that it is at work
            except ConnectionError:
                continue  # given back; it comes again before anything later of its sensor


def child(*arguments):
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)


def kill(process):
    """Without warning. What it had said until then."""
    os.kill(process.pid, signal.SIGKILL)
    return process.communicate()[0].splitlines()


def run(place, durability):
    path, server = f"{place}/{durability}.strictq", f"{place}/{durability}.jsonl"
    strictq.open(path, durability=durability, config=CONFIG).close()
    stored = []  # what the sensor was told is stored
    began = time.monotonic()
    for _ in range(ROUNDS):
        sensor, uploader = child("measure", path, durability), child("upload", path, durability, server)
        try:
            stored += [json.loads(sensor.stdout.readline()) for _ in range(READINGS)]
            for _ in range(UPLOADS):
                uploader.stdout.readline()
        finally:
            stored += map(json.loads, kill(sensor))
            kill(uploader)
    with child("upload", path, durability, server) as uploader:  # at last, one that may finish
        uploader.communicate()

    # The server drops what it knows: (sensor, seq) names a reading for ever.
    uploads, known, in_order = 0, {}, True
    for line in Path(server).read_text(encoding="utf-8").splitlines():
        sensor, seq, _value = json.loads(line)
        uploads += 1
        new = seq not in known.setdefault(sensor, set())
        in_order = in_order and (not new or seq == len(known[sensor]) + 1)
        known[sensor].add(seq)
    lost = [reading for reading in stored if reading[1] not in known.get(reading[0], set())]
    on_server = sum(map(len, known.values()))
    print(
        f'durability="{durability}": {2 * ROUNDS} kills in {time.monotonic() - began:.1f} s\n'
        f"    the sensor was told that {len(stored)} readings are stored; the server has {on_server}\n"
        f"    lost: {len(lost)}; in the order of their sensor: {in_order}; uploaded twice, and dropped: {uploads - on_server}"
    )
    with strictq.open(path, durability=durability) as q:
        assert q.stats().depth == 0
        assert q.check() == []
    assert lost == []
    assert in_order


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"measure": measure, "upload": upload}[sys.argv[1]](*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as directory:
            for level in ("full", "process"):
                run(directory, level)
        print(TABLE)
