"""Web events on Spark: staged by this program, cleaned in parallel, applied in order per user. Run it: python web_events.py

Needs strictq's extra "spark" and Java 17 or newer. This program, Spark's driver, sends raw events to one queue while Spark
works. A stream cleans them, on all cores and in any order, into a second queue, each one exactly once. A pipeline applies what is
clean to the users' profiles, in order per user, each one once. Meanwhile a line every half second says how far behind both are.

Every event says what the user's profile was before it and is after it, so a lost, doubled or swapped event breaks the user's
chain. At the end everything is worked out a second time, from what was sent alone, and compared.

With --input it takes your own events instead: JSON lines, plain or gzip, with a key and a chain, `old` and `new`:
python web_events.py --input history.jsonl.gz --key path
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import sys
import tempfile
import threading
import time

import strictq
import strictq.spark

LOOK_SECONDS = 0.5
SCHEMA = "CREATE TABLE IF NOT EXISTS app_profile (user TEXT PRIMARY KEY, events INTEGER, last TEXT, broken INTEGER) STRICT"


def made(events, users, seed=1):
    """(user, line) of visits to a site, with crawlers and garbage among them, as in any web server's log."""
    chance, profile = random.Random(seed), {}
    for n in range(events):
        user = f"user-{int(users * chance.random() ** 2)}"
        old = profile.get(user, "0" * 16)
        event = {"user": user, "page": f"/item/{chance.randrange(500)}", "agent": "browser", "n": n, "old": old}
        if chance.random() < 0.05:
            event["agent"] = "some-bot/1.0"
        elif chance.random() < 0.02:
            yield user, b"\xff\x00 half a li"
            continue
        else:
            profile[user] = event["new"] = hashlib.sha256(json.dumps(event).encode()).hexdigest()[:16]
        yield user, json.dumps(event).encode()


def from_file(path, key):
    """(key, line) of a file."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as lines:
        for line in lines:
            yield json.loads(line)[key], line.rstrip(b"\n")


def stage(raw, events, rate):
    """What the driver program does: send what comes, a few at a time; about `rate` a second, or as fast as it can."""
    batch = []
    for user, line in events:
        batch.append(strictq.Message(line, key=user))
        if len(batch) == 200:
            raw.send_many(batch)
            time.sleep(len(batch) / rate if rate else 0.0)
            batch = []
    raw.send_many(batch)


def clean(batches):
    """On executors, in any order: the links of events. Crawlers and what is no event are left out."""
    import pyarrow as pa

    for batch in batches:
        rows = []
        for key, seq, body in zip(*(batch.column(name).to_pylist() for name in ("key", "seq", "body")), strict=True):
            try:
                event = json.loads(body)
            except ValueError:
                continue
            if "bot" not in event.get("agent", ""):
                rows.append((key, seq, json.dumps([event["old"], event["new"]]).encode()))
        yield pa.RecordBatch.from_pylist(
            [dict(zip(("key", "seq", "body"), row, strict=True)) for row in rows],
            pa.schema([("key", pa.string()), ("seq", pa.int64()), ("body", pa.binary())]),
        )


def apply(job):
    """In order per user. The profile's state and row commit with the ack, or none of the three."""
    old, new = json.loads(job.body)
    events, last, broken = json.loads(job.key_state or b'[0, "", 0]')
    events, broken = events + 1, broken + (old != last if events else set(old) != {"0"})
    job.key_state = json.dumps([events, new, broken]).encode()
    job.execute("INSERT OR REPLACE INTO app_profile VALUES (?, ?, ?, ?)", (job.key, events, new, broken))


def by_hand(events):
    """User → events, and what the profile is in the end; from what was sent."""
    found = {}
    for user, line in events:
        if not line.startswith(b"{") or b"-bot/" in line:
            continue
        found[user] = (found.get(user, (0,))[0] + 1, json.loads(line)["new"])
    return found


def watch(raw, cleaned, staging, query, flow):
    """The live view of lag. Ends the pipeline when everything is done, or the query has failed."""
    while query.isActive:
        done, waiting = not staging.is_alive() and raw.stats().depth == 0, cleaned.stats()
        lag, age, rate = raw.stats().depth, 0.0, 0.0
        for c in raw.consumers():  # there is one, as soon as Spark has begun
            lag, age, rate = c.lag, c.age_seconds or 0.0, c.query.messages_per_second if c.query else 0.0
        print(
            f"to clean: {lag:6,}, oldest {age:4.1f} s, {rate:6,.0f} a second    "
            f"to apply: {waiting.depth:6,}, oldest {waiting.oldest_age_seconds or 0.0:4.1f} s",
            flush=True,
        )
        if done and waiting.depth == 0:
            break
        time.sleep(LOOK_SECONDS)
    flow.stop()


def run(spark, place, events, rate):
    """The whole job. Returns user → (events, last, broken links), as applied."""
    strictq.spark.register(spark)
    raw, cleaned = (strictq.open(f"{place}/{name}.strictq", shards=2, durability="process") for name in ("raw", "cleaned"))
    with raw, cleaned:
        cleaned.app_schema(SCHEMA)
        source = (
            spark.readStream.format("strictq").options(path=raw.path, consumer="cleaning", maxMessagesPerTrigger=10_000).load()
        )
        query = (
            source.select("key", "seq", "body")
            .mapInArrow(clean, "key string, seq long, body binary")
            .writeStream.format("strictq")
            .options(path=cleaned.path, orderBy="seq", checkpointLocation=f"{place}/checkpoint")
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        flow = strictq.spark.pipeline(spark, cleaned, process=apply, key_state=True, batch_seconds=1.0)
        staging = threading.Thread(target=stage, args=(raw, events, rate))
        staging.start()
        watching = threading.Thread(target=watch, args=(raw, cleaned, staging, query, flow))
        watching.start()
        try:
            flow.run(wait=None)
        finally:
            staging.join()
            watching.join()
            query.stop()
        if query.exception() is not None:
            raise query.exception()
        assert raw.check() == cleaned.check() == []
        return {user: rest for user, *rest in cleaned.query("SELECT user, events, last, broken FROM app_profile")}


def compare(found, expected, staged):
    """Say how what was applied differs from what was worked out by hand. It must not."""
    wrong = sum(found.get(user, ())[:2] != [*end] for user, end in expected.items()) + len(found.keys() - expected.keys())
    broken = sum(links for _, _, links in found.values())
    print(f"\n{staged:,} events staged, {sum(n for n, *_ in found.values()):,} of {len(found):,} users applied in order")
    print(f"broken links: {broken}; users that differ from what was worked out by hand: {wrong}")
    assert broken == wrong == 0


def main():
    parser = argparse.ArgumentParser(description="Web events: staged, cleaned in parallel, applied in order per user.")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--rate", type=float, default=2_000.0, help="events a second that are staged; 0: as fast as it goes")
    parser.add_argument("--input", help="JSON lines instead, with `old` and `new`")
    parser.add_argument("--key", default="user", help="the field of --input that is the key")
    options = parser.parse_args()

    def events():
        return from_file(options.input, options.key) if options.input else made(options.events, options.users)

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as place:
        builder = SparkSession.builder.appName("web events").master("local[*]").config(map=strictq.spark.session_options())
        builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{place}/warehouse").getOrCreate()
        try:
            compare(run(spark, place, events(), options.rate), by_hand(events()), sum(1 for _ in events()))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
