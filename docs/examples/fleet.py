"""Four ships with a queue each, read as one stream on Spark, and how far behind each of them is. Run it: python fleet.py

Needs strictq's extra "spark" and Java 17 or newer. North sends readings steadily. East sends a burst. West stops. South is
at sea: its queue, with the readings of the voyage, comes into the fleet's directory while the stream runs, and is found. The
stream reads less in a second than the ships send at their peak, so each ship's lag grows and shrinks. A line every half second
shows it, and --plot draws it:
python fleet.py --plot lag.svg

At the end every reading is looked up in the lake: each must be there once, and in the order in which its sensor sent it.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from html import escape

import strictq
import strictq.spark

SENSORS = 4
NORTH, EAST, SOUTH, WEST = 200, 100, 100, 600
"""Readings a second."""
BURST, VOYAGE = 330, 250
"""What comes at once, of east and of south's voyage: readings for each second of the run."""
BURST_AT, STOP_AT, PORT_AT = 0.2, 0.5, 0.6
"""When it happens, in parts of the run."""
MESSAGES_PER_TRIGGER, TRIGGER = 800, "500 milliseconds"
SAMPLE_SECONDS, SHOWN_EACH = 0.1, 5
FILLS = {"north": "#12406e", "east": "#d98b2b", "south": "#3f7fbf", "west": "#8e6bb0"}
PIXELS, HEIGHT, LEFT, TOP, BOTTOM = 760, 310, 54, 56, 26


def due(ship, at, seconds):
    """How many readings a ship has sent after some seconds of a run of so many."""
    part = at / seconds
    if ship == "north":
        return int(NORTH * at)
    if ship == "east":
        return int(EAST * at + (BURST * seconds if part >= BURST_AT else 0))
    if ship == "west":
        return int(WEST * min(at, STOP_AT * seconds))
    return int(VOYAGE * seconds + SOUTH * (at - PORT_AT * seconds)) if part >= PORT_AT else 0


class Fleet:
    """The ships, their queues, and what they have sent."""

    def __init__(self, place, seconds):
        self.place, self.seconds = place, seconds
        self.queues = {ship: strictq.open(f"{place}/fleet/{ship}", durability="process") for ship in ("north", "east", "west")}
        self.sent = dict.fromkeys(FILLS, 0)
        for ship in self.queues:
            self.send(ship, 1)

    def send(self, ship, upto):
        """Send a ship's next readings, in turn of its sensors."""
        n = self.sent[ship]
        self.queues[ship].send_many(strictq.Message(b"%d" % i, key=f"sensor-{i % SENSORS}") for i in range(n, upto))
        self.sent[ship] = max(n, upto)

    def come_into_port(self):
        """The queue of a ship that was at sea: it is moved into the directory that the stream reads."""
        with strictq.open(f"{self.place}/sea/south", durability="process") as q:
            self.queues["south"] = q
            self.send("south", int(VOYAGE * self.seconds))
        os.rename(f"{self.place}/sea/south", f"{self.place}/fleet/south")
        self.queues["south"] = strictq.open(f"{self.place}/fleet/south")

    def sail(self):
        """Send what is due, until the end."""
        began, at = time.monotonic(), 0.0
        while at < self.seconds:
            at = min(time.monotonic() - began, self.seconds)
            if at >= PORT_AT * self.seconds and "south" not in self.queues:
                self.come_into_port()
            for ship in self.queues:
                self.send(ship, due(ship, at, self.seconds))
            time.sleep(0.05)

    def lags(self):
        """Ship → how many of its readings the stream has not processed."""
        found = {}
        for ship, q in list(self.queues.items()):
            try:
                consumers = q.consumers()
                found[ship] = consumers[0].lag if consumers else q.stats().depth
            except strictq.QueueClosed:  # it is coming into port
                continue
        return found

    def close(self):
        for q in self.queues.values():
            q.close()


def run(spark, place, seconds):
    """The whole job. Returns how many readings each ship sent, and the samples: (second, ship → lag)."""
    strictq.spark.register(spark)
    fleet = Fleet(place, seconds)
    readings = (
        spark.readStream.format("strictq")
        .option("consumer", "lake")
        .option("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER)
        .load(f"{place}/fleet/*/")
    )

    def write(batch, number):
        # A repeated batch replaces itself, not a batch of another checkpoint.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        batch.write.mode("overwrite").parquet(f"{place}/lake/query={query_id}/batch={number}")

    query = (
        readings.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(processingTime=TRIGGER)
        .start()
    )
    try:
        query.processAllAvailable()  # Spark has started what it needs
        sailing = threading.Thread(target=fleet.sail)
        sailing.start()
        samples, began = [], time.monotonic()
        while query.isActive and (sailing.is_alive() or any(samples[-1][1].values())):
            samples.append((time.monotonic() - began, fleet.lags()))
            if len(samples) % SHOWN_EACH == 1:
                at, lags = samples[-1]
                print(f"{at:5.1f} s  " + "  ".join(f"{ship} {lags.get(ship, 0):6,}" for ship in FILLS), flush=True)
            time.sleep(SAMPLE_SECONDS)
        sailing.join()
    finally:
        query.stop()
        fleet.close()
    if query.exception() is not None:
        raise query.exception()
    return fleet.sent, samples


def compare(spark, place, sent):
    """Say how what is in the lake differs from what was sent. It must not."""
    found = {}
    for row in spark.read.parquet(f"{place}/lake").orderBy("batch", "seq").select("path", "key", "body").collect():
        found.setdefault((os.path.basename(row.path), row.key), []).append(int(row.body))
    expected = {
        (ship, f"sensor-{n}"): list(range(n, count, SENSORS)) for ship, count in sent.items() for n in range(min(SENSORS, count))
    }
    wrong = sum(found.get(sensor) != readings for sensor, readings in expected.items()) + len(found.keys() - expected.keys())
    print(f"\n{sum(sent.values()):,} readings of {len(sent)} ships; sensors with one lost, doubled or out of order: {wrong}")
    assert wrong == 0


def draw(samples, seconds):
    """A picture of the samples, as SVG, readable on light and dark pages."""
    end = max(seconds, samples[-1][0])
    highest = max(max(lags.values(), default=0) for _, lags in samples) or 1
    step = next(s for s in (10, 100, 500, 1_000, 5_000, 10_000, 1e9) if highest / s <= 6)

    def x(at):
        return LEFT + at / end * (PIXELS - LEFT - 16)

    def y(lag):
        return HEIGHT - BOTTOM - lag / highest * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PIXELS} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>Messages of each queue that the stream has not processed</title>",
        f'<rect width="{PIXELS}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
    ]
    for lag in range(0, highest + 1, int(step)):
        parts.append(f'<path d="M{LEFT} {y(lag):.1f}H{PIXELS - 16}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(lag) + 4:.1f}" text-anchor="end" fill="#52687f">{lag:,}</text>')
    parts += [
        f'<text x="{x(at):.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#52687f">{at} s</text>'
        for at in range(0, int(end) + 1, 2 if end < 30 else 10)
    ]
    for part, text in ((BURST_AT, "burst of east"), (STOP_AT, "west stops"), (PORT_AT, "south comes into port")):
        at = x(part * seconds)
        parts.append(f'<path d="M{at:.1f} {TOP - 18}V{HEIGHT - BOTTOM}" stroke="#52687f" stroke-dasharray="3 4"/>')
        anchor, shift = ("end", -5) if part == STOP_AT else ("start", 5)
        parts.append(f'<text x="{at + shift:.1f}" y="{TOP - 9}" text-anchor="{anchor}" fill="#1f2d3d">{escape(text)}</text>')
    for n, (ship, fill) in enumerate(FILLS.items()):
        points = " ".join(f"{x(at):.1f},{y(lags[ship]):.1f}" for at, lags in samples if ship in lags)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{fill}" stroke-width="2" stroke-linejoin="round"/>')
        parts.append(f'<rect x="{LEFT + 80 * n}" y="10" width="12" height="12" fill="{fill}"/>')
        parts.append(f'<text x="{LEFT + 80 * n + 17}" y="20" fill="#1f2d3d">{ship}</text>')
    parts.append(
        f'<text x="{PIXELS - 16}" y="20" text-anchor="end" fill="#52687f">messages that the stream has not processed</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description="Four ships as one stream, and the lag of each.")
    parser.add_argument("--seconds", type=float, default=12.0, help="for which the ships send; 12 by default")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the lags, as SVG")
    options = parser.parse_args()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as place:
        builder = SparkSession.builder.appName("fleet").master("local[*]").config(map=strictq.spark.session_options())
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{place}/warehouse").getOrCreate()
        try:
            sent, samples = run(spark, place, options.seconds)
            compare(spark, place, sent)
        finally:
            spark.stop()
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(draw(samples, options.seconds))


if __name__ == "__main__":
    main()
