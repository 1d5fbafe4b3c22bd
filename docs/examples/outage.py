"""A device with 64 MB of memory buffers readings through an outage of its server, and is killed three times. Run it:
python outage.py

The device is a process of its own, limited to 64 MB (RLIMIT_DATA). It stores the readings of its sensors in a queue, at
durability "full", and uploads them in batches. The server is down for a while. During the outage, and after it, the device gets a
kill -9 and is started again. The readings that the device reported as stored are compared with those that the server has.
--plot draws the number of waiting readings and the memory of the device:
python outage.py --seconds 120 --plot outage.svg
"""

import argparse
import json
import logging
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from html import escape
from pathlib import Path

import strictq
from strictq import Breaker, QueueConfig, Worker

MEMORY = 64_000_000
SENSORS, BATCH, SEND_SECONDS = 20, 500, 0.1
DOWN_AT, UP_AT = 1 / 6, 4 / 6
KILLS_AT = (2 / 6, 3 / 6, 4.3 / 6)
"""When it happens, in parts of the run."""
SAMPLE_SECONDS = 0.1
PIXELS, HEIGHT, LEFT, RIGHT, TOP, MIDDLE, BOTTOM = 760, 330, 60, 16, 44, 200, 26
WAITING, RESIDENT, LIMIT = "#2c7fb8", "#d98b2b", "#a33a2c"


# ---- the device


def device(queue, server, life, rate):
    """Read the sensors and upload, until this process is killed or its stdin ends. Print how many readings are stored."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    threading.stack_size(512 * 1024)
    logging.disable()  # the worker logs a warning for each failed upload

    def upload(jobs):
        with socket.create_connection(("127.0.0.1", server), timeout=10) as s, s.makefile("rw") as file:
            file.write(json.dumps([(job.key, job.seq, int(job.body)) for job in jobs]) + "\n")
            file.flush()
            assert file.readline() == "stored\n"

    def read_sensors():
        n, started = 0, time.monotonic()
        while not ended.wait(SEND_SECONDS):
            due = int((time.monotonic() - started) * rate)
            readings = [(f"sensor-{i % SENSORS}", life * 10**9 + i) for i in range(n, due)]
            q.send_many(strictq.Message(b"%d" % number, key=key) for key, number in readings)
            n = due
            print(n, flush=True)  # they are on the disk
        while q.stats().depth:
            time.sleep(SEND_SECONDS)
        worker.stop()

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    config = QueueConfig(max_attempts=None, retry_delay_max_seconds=300.0)
    with strictq.open(queue, config=config) as q:
        worker = Worker(q, process_batch=upload, batch_max=BATCH, concurrency=1, breaker=Breaker(starts_min=3))
        threading.Thread(target=read_sensors, daemon=True).start()
        worker.run()


# ---- the server


class Server:
    """Stores each (sensor, seq) once. While it is down, connections are refused."""

    def __init__(self):
        self.port, self.listener, self.repeated = 0, None, 0
        self.readings = {f"sensor-{i}": {} for i in range(SENSORS)}  # seq → reading, in the order in which they came
        self.up()

    def up(self):
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, args=[self.listener], daemon=True).start()

    def down(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it is down
                return
            try:
                with connection, connection.makefile("rw") as file:
                    for sensor, seq, reading in json.loads(file.readline()):
                        self.repeated += seq in self.readings[sensor]
                        self.readings[sensor].setdefault(seq, reading)
                    file.write("stored\n")
                    file.flush()
            except (OSError, ValueError):  # the device was killed meanwhile
                pass

    @property
    def count(self):
        return sum(map(len, self.readings.values()))


# ---- the run


class Devices:
    """The device's process, one after the other."""

    def __init__(self, queue, server, rate):
        self.arguments, self.rate = [queue, str(server.port)], rate
        self.reported, self.killed = [], 0  # for each life, the number of readings that it reported as stored
        self.start()

    def start(self):
        command = [sys.executable, __file__, "--device", *self.arguments, str(len(self.reported)), str(self.rate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reported.append(0)
        self.listener = threading.Thread(target=self.listen, args=[self.process.stdout, len(self.reported) - 1])
        self.listener.start()

    def listen(self, file, life):
        for line in file:
            if line.endswith("\n"):  # a kill may cut the last one
                self.reported[life] = int(line)

    def kill(self):
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        self.listener.join()
        self.process.stdin.close()
        self.process.stdout.close()
        self.killed += 1
        self.start()

    def finish(self):
        """Stop the sensors, and let the device upload what waits."""
        self.process.stdin.close()

    def resident(self):
        """Return the resident memory of the process, in bytes; None if it ended."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            return None


def run(queue, seconds, rate):
    """Return the server, the devices, samples (time, waiting readings, resident bytes or None), and the times of the steps."""
    server = Server()
    devices = Devices(queue, server, rate)
    plan = [(DOWN_AT, server.down), (UP_AT, server.up), *((at, devices.kill) for at in KILLS_AT), (1.0, devices.finish)]
    plan.sort(key=lambda step: step[0])
    samples, steps, started = [], [], time.monotonic()
    while devices.process.poll() is None:
        at = time.monotonic() - started
        if plan and at >= plan[0][0] * seconds and devices.reported[-1]:  # it has started
            steps.append((plan[0][1].__name__, at))
            plan.pop(0)[1]()
        samples.append((at, max(0, sum(devices.reported) - server.count), devices.resident()))
        time.sleep(SAMPLE_SECONDS)
    devices.listener.join()
    devices.process.stdout.close()
    server.down()
    assert devices.process.returncode == 0, devices.process.returncode
    return server, devices, samples, steps


def compare(server, devices, samples):
    """Print how the server's readings differ from those that were reported as stored. They must not."""
    stored = {life * 10**9 + n for life, count in enumerate(devices.reported) for n in range(count)}
    arrived = [reading for readings in server.readings.values() for reading in readings.values()]
    lost = len(stored - set(arrived))
    reordered = sum(list(r) != sorted(r) or list(r.values()) != sorted(r.values()) for r in server.readings.values())
    most = max(waiting for _, waiting, _ in samples)
    memory = max(size for _, _, size in samples if size)
    print(
        f"{len(stored):,} readings reported as stored, by a device that was killed {devices.killed} times\n"
        f"    at most {most:,} waited; resident memory at most {memory / 1e6:.0f} MB\n"
        f"    lost: {lost}; stored twice: {len(arrived) - len(set(arrived))}; sensors out of order: {reordered}\n"
        f"    uploaded again after a kill, and ignored by the server: {server.repeated}"
    )
    assert (lost, reordered, len(arrived)) == (0, 0, len(set(arrived)))


# ---- the picture


def draw(samples, steps, rate):
    """Return a picture of the samples, as SVG, readable on light and dark pages."""
    end = samples[-1][0]
    most = max(1, *(waiting for _, waiting, _ in samples))
    down, up = (next(at for name, at in steps if name == step) for step in ("down", "up"))
    step = next(s for s in (500, 1_000, 5_000, 10_000, 20_000, 50_000, 10**9) if most / s <= 5)

    def x(at):
        return LEFT + at / end * (PIXELS - LEFT - RIGHT)

    def text(at, y, words, anchor="start", fill="#1f2d3d"):
        return f'<text x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'

    def panel(top, bottom, highest, values, fill, ticks, label):
        def y(value):
            return bottom - value / highest * (bottom - top)

        for tick in ticks:
            yield f'<path d="M{LEFT} {y(tick):.1f}H{PIXELS - RIGHT}" stroke="#dddddd"/>'
            yield text(LEFT - 6, y(tick) + 4, label(tick), "end", "#52687f")
        parts = [f"{'L' if i else 'M'}{x(at):.1f} {y(value):.1f}" for i, (at, value) in enumerate(values)]
        yield f'<path d="{"".join(parts)}" fill="none" stroke="{fill}" stroke-width="2" stroke-linejoin="round"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PIXELS} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>A device buffers readings through an outage of its server and three kill -9</title>",
        f'<rect width="{PIXELS}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        f'<path d="M{x(down):.1f} {TOP - 8}H{x(up):.1f}V{HEIGHT - BOTTOM}H{x(down):.1f}Z" fill="#f1f1f1"/>',
        text(x(down) + 6, TOP + 8, "server down", fill="#52687f"),
        text(LEFT, 20, f"readings that wait on the device ({rate:,.0f} arrive per second)", fill=WAITING),
        text(LEFT, MIDDLE + 8, "resident memory of the device", fill=RESIDENT),
    ]
    waiting = [(at, n) for at, n, _ in samples]
    resident = [(at, size) for at, _, size in samples if size]
    parts += panel(TOP, MIDDLE - 16, most, waiting, WAITING, range(0, most + 1, step), "{:,}".format)
    ticks = range(0, MEMORY + 1, MEMORY // 2)
    parts += panel(MIDDLE + 18, HEIGHT - BOTTOM, MEMORY, resident, RESIDENT, ticks, lambda size: f"{size / 1e6:.0f} MB")
    parts.append(f'<path d="M{LEFT} {MIDDLE + 18}H{PIXELS - RIGHT}" stroke="{LIMIT}" stroke-dasharray="6 4"/>')
    parts.append(text(PIXELS - RIGHT, MIDDLE + 14, "limit", "end", LIMIT))
    for at in (x(at) for name, at in steps if name == "kill"):
        parts.append(f'<path d="M{at:.1f} {TOP - 8}V{HEIGHT - BOTTOM}" stroke="{LIMIT}" stroke-dasharray="3 4"/>')
        parts.append(text(at, TOP - 12, "kill -9", "middle", LIMIT))
    each = next(s for s in (1, 2, 5, 10, 20, 60, 10**9) if end / s <= 10)
    parts += [text(x(at), HEIGHT - 8, f"{at} s", "middle", "#52687f") for at in range(0, int(end) + 1, each)]
    return "\n".join([*parts, "</svg>", ""])


def main():
    if sys.argv[1:2] == ["--device"]:
        queue, server, life, rate = sys.argv[2:]
        device(queue, int(server), int(life), float(rate))
        return
    parser = argparse.ArgumentParser(description="A device that buffers readings through an outage of its server.")
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="of the run; the server is down for half of it; 12 by default"
    )
    parser.add_argument("--rate", type=float, default=1000.0, help="readings per second; 1000 by default")
    parser.add_argument("--plot", metavar="FILE", help="write a picture, as SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        server, devices, samples, steps = run(f"{place}/device.strictq", options.seconds, options.rate)
    compare(server, devices, samples)
    if options.plot:
        Path(options.plot).write_text(draw(samples, steps, options.rate), encoding="utf-8")


if __name__ == "__main__":
    main()
