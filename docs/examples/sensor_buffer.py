"""A buffer for sensor readings on a device that loses power. Run it: python sensor_buffer.py

A sensor puts its readings into the queue; an uploader brings them to a server that is not always there. Again and again the
power goes, at any write to the disk. Then the device boots with what was on the disk, and goes on. For each durability we
compare what the sensor was told is stored with what is left of it.

The power cut is played on a recorded disk: SQLite writes through a layer that notes what it wrote, and what of that it has
synced. What was synced is on the disk after the cut; of everything else, nothing, all, or what was written up to some sector.
Such a disk tells the truth: real ones may not. (A kill -9 can't show this: it leaves all that was given to the operating system.)
"""

import random
import tempfile
import threading
from pathlib import Path

import apsw  # SQLite for Python; it comes with strictq

from strictq.testing import Machine

SENSORS = ("cellar", "kitchen", "roof")
CUTS, WRITES_MAX, SECTOR = 40, 400, 512
SETTINGS = {
    "max_attempts": None,  # a network that is down is not the reading's fault
    "retry_delay_seconds": 0.5,
    "max_depth": 100_000,  # bounds the disk
}


class PowerCut(Exception):
    """Nothing happens any more."""


class Disk(apsw.VFS):
    """The layer below SQLite: what is in its files, and what of it a power cut leaves. Made before the first queue is opened."""

    def __init__(self):
        super().__init__("recorded-disk", "unix")
        self.lock, self.left = threading.Lock(), {}  # it records from a boot to the cut
        apsw.set_default_vfs("recorded-disk")

    def boot(self, directory, writes):
        """What is there now is on the disk. After so many writes the power goes; 0: never."""
        self.synced = {str(file): bytearray(file.read_bytes()) for file in directory.iterdir()}
        self.unsynced = []  # (path, offset, data): writes, and with None for the data, truncations
        self.writes, self.left = writes, None

    def require_power(self):
        if self.left is not None:
            raise PowerCut

    def cut(self):
        """Decide what is on the disk: how many of the writes that were not synced had arrived, and how much of the one behind."""
        self.left, unsynced = self.synced, self.unsynced  # from now on no thread's write counts
        arrived = random.choice((0, random.randint(0, len(unsynced)), len(unsynced)))
        for write in unsynced[:arrived]:
            apply(self.left, *write)
        for path, offset, data in unsynced[arrived : arrived + 1]:
            if data is not None:
                apply(self.left, path, offset, data[: SECTOR * random.randint(0, len(data) // SECTOR)])

    def restore(self, directory):
        """Make the files what they are after the cut."""
        for file in directory.iterdir():
            file.unlink()
        for path, data in self.left.items():
            if not path.endswith("-shm"):  # SQLite's shared memory is never on a disk
                Path(path).write_bytes(data)

    # ---- what SQLite calls

    def xOpen(self, name, flags):
        return File(self, name, flags)

    def xDelete(self, path, sync_directory):
        super().xDelete(path, sync_directory)
        with self.lock:
            if self.left is None:
                self.forget(path)
                if sync_directory:
                    self.synced.pop(path, None)

    def forget(self, path):
        """Of a file that is synced or deleted: its writes that were not synced before."""
        mine = [write for write in self.unsynced if write[0] == path]
        self.unsynced = [write for write in self.unsynced if write[0] != path]
        return mine


def apply(files, path, offset, data):
    """Do to these files what was done to the disk."""
    file = files.setdefault(path, bytearray())
    if data is None:
        del file[offset:]
        return
    file.extend(bytes(max(0, offset - len(file))))
    file[offset : offset + len(data)] = data


class File(apsw.VFSFile):
    """One open file; several may be the same."""

    def __init__(self, disk, name, flags):
        self.disk, self.path = disk, name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("unix", name, flags)

    def xWrite(self, data, offset):
        super().xWrite(data, offset)
        with self.disk.lock:  # strictq has a thread of its own for checkpoints
            if self.disk.left is None:
                self.disk.unsynced.append((self.path, offset, bytes(data)))
                self.disk.writes -= 1
                if self.disk.writes == 0:
                    self.disk.cut()

    def xTruncate(self, size):
        super().xTruncate(size)
        with self.disk.lock:
            if self.disk.left is None:
                self.disk.unsynced.append((self.path, size, None))

    def xSync(self, flags):
        super().xSync(flags)
        with self.disk.lock:
            if self.disk.left is None:
                for write in self.disk.forget(self.path):
                    apply(self.disk.synced, *write)


class Device:
    """The sensor's and the uploader's programs, and what is known outside of the device."""

    def __init__(self):
        self.readings = 0  # numbered, so that we know each again
        self.told = set()  # stored, as the sensor was told
        self.done = set()  # uploaded, and acked
        self.server = []  # (sensor, reading), as they came

    def live(self, q, clock, disk):
        """Read and upload, until the power goes. What a call returns after that, nobody has seen."""
        while True:
            clock.advance(1.0)
            for sensor in SENSORS:
                self.readings += 1
                q.send(b"%d" % self.readings, key=sensor)
                disk.require_power()
                self.told.add(self.readings)
            for d in q.receive(2, per_key=1):  # too few: a backlog grows
                self.upload(d, disk)

    def upload(self, d, disk):
        disk.require_power()
        if random.random() < 0.1:
            d.nack(reason="no network")  # it comes again before anything later of its sensor
            return
        self.server.append((d.key, int(d.body)))
        d.ack()
        disk.require_power()
        self.done.add(int(d.body))

    def in_order(self):
        """The server drops what it knows. What is new to it must come in the order of its sensor."""
        new = [[r for s, r in dict.fromkeys(self.server) if s == sensor] for sensor in SENSORS]
        return new == [sorted(readings) for readings in new]


def run(disk, machine, durability):
    name, device = f"{durability}.strictq", Device()
    machine.open(name, durability=durability, **SETTINGS).close()  # a new queue is on the disk once it is open
    missing, worst, undone, problems = set(), 0, 0, 0
    for _ in range(CUTS):
        disk.boot(machine.directory / name, random.randint(1, WRITES_MAX))
        try:
            device.live(machine.open(name, durability=durability), machine.clock, disk)
        except PowerCut:
            machine.reboot(down_seconds=60.0)
            disk.restore(machine.directory / name)

        with machine.open(name, durability=durability) as q:
            problems += len(q.check())
            stored = {int(m.body) for sensor in SENSORS for m in q.peek(sensor, device.readings)}
        lost = device.told - stored - {reading for _, reading in device.server} - missing
        assert not lost or min(lost) > max(stored, default=0), "a power cut takes the newest alone"
        undone += len(device.done & stored)
        device.done -= stored
        missing |= lost
        worst = max(worst, len(lost))

    disk.boot(machine.directory / name, writes=0)  # from now on there is power
    with machine.open(name, durability=durability) as q:
        while q.stats().depth:
            machine.clock.advance(1.0)
            for d in q.receive(1000, per_key=1):
                device.upload(d, disk)
        problems += len(q.check())

    twice = len(device.server) - len(set(device.server))
    print(
        f'durability="{durability}": {CUTS} power cuts; the sensor was told that {len(device.told)} readings are stored\n'
        f"    missing: {len(missing)}, at most {worst} after one cut, and only the newest\n"
        f"    in order: {device.in_order()}; problems found by q.check(): {problems}\n"
        f"    acks undone: {undone}; uploaded twice, by them and by cuts between upload and ack: {twice}"
    )
    assert device.told - {reading for _, reading in device.server} == missing
    assert device.in_order()
    assert problems == 0
    if durability == "full":
        assert (len(missing), undone) == (0, 0), "what a call has returned for stays"
    else:
        assert missing, "a disk that takes nothing shows nothing"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, Machine(directory) as device_machine:
        recorded = Disk()
        for level in ("full", "process"):
            run(recorded, device_machine, level)
