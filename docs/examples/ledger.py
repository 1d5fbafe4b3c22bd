"""A ledger of orders that counts each one exactly once, though its process is killed. Run it: python ledger.py

A child process books orders: a row in the ledger, the customer's balance and the ack commit in one transaction, in tables
of the program's own. We kill it with kill -9 inside a transaction, after it wrote and before it committed, three times.
Then we count: by the tables, and by what was sent.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import strictq
from strictq import Message, QueueConfig

CUSTOMERS, ORDERS, KILLS = 20, 400, 3
SCHEMA = """
CREATE TABLE IF NOT EXISTS app_ledger (customer TEXT, seq INTEGER, cents INTEGER NOT NULL, PRIMARY KEY (customer, seq)) STRICT;
CREATE TABLE IF NOT EXISTS app_balance (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL) STRICT;
"""


def book(path, mails, stop_after):
    """The child: books orders until there are none, or until it sits in the middle of one, waiting to be killed."""
    booked = 0
    with strictq.open(path) as q, open(mails, "a", encoding="utf-8") as outside:
        for d in q.consume(wait=0.5):
            print(f"{d.key} {d.seq}", file=outside, flush=True)  # an effect outside the queue: nothing can undo it
            with d, q.transaction(d) as tx:
                cents = d.json()["cents"]

                def write(db, d=d, cents=cents):
                    db.execute("INSERT INTO app_ledger VALUES (?, ?, ?)", (d.key, d.seq, cents))
                    db.execute(
                        "INSERT INTO app_balance VALUES (?, ?) ON CONFLICT DO UPDATE SET cents = cents + excluded.cents",
                        (d.key, cents),
                    )

                tx.run(write)
                if booked == stop_after:
                    print(json.dumps([d.key, d.seq, d.attempt]), flush=True)
                    time.sleep(3600)  # written, not committed
            booked += 1
    print(json.dumps("done"), flush=True)


def run_child(path, mails, stop_after):
    """Start it; what it says; and kill it if it says that it is in the middle of an order."""
    command = [sys.executable, __file__, path, mails, str(stop_after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        said = json.loads(child.stdout.readline())
        if said != "done":
            os.kill(child.pid, signal.SIGKILL)
    return said


def main(place):
    path, mails = f"{place}/orders.strictq", f"{place}/mails.txt"
    chance = random.Random(7)
    orders = [(f"customer-{chance.randrange(CUSTOMERS)}", chance.randrange(-500, 2000)) for _ in range(ORDERS)]

    # A short lease, so that the orders of a child that was killed come back soon.
    with strictq.open(path, config=QueueConfig(lease_seconds=0.5)) as q:
        q.app_schema(SCHEMA)
        q.send_many([Message.json({"cents": cents}, key=customer) for customer, cents in orders])

    killed_at = []
    while (said := run_child(path, mails, 40 if len(killed_at) < KILLS else ORDERS)) != "done":
        customer, seq, attempt = said
        killed_at.append((customer, seq))
        with strictq.open(path) as q:
            there = q.query("SELECT count(*) FROM app_ledger WHERE customer = ? AND seq = ?", (customer, seq))
        print(f"killed inside order {seq} of {customer} (attempt {attempt}); rows of it in the ledger: {there[0][0]}")

    with strictq.open(path) as q:
        ledger = q.query("SELECT customer, seq, cents FROM app_ledger ORDER BY customer, seq")
        balances = dict(q.query("SELECT customer, cents FROM app_balance"))
        stats, problems = q.stats(), q.check()

    expected, seqs = Counter(), Counter()
    should_be = []
    for customer, cents in orders:
        seqs[customer] += 1
        expected[customer] += cents
        should_be.append((customer, seqs[customer], cents))
    lines = Counter(Path(mails).read_text(encoding="utf-8").splitlines())
    twice = sum(1 for n in lines.values() if n > 1)

    print(f"\norders sent {ORDERS}, in the ledger {len(ledger)}, each once and as sent: {sorted(should_be) == ledger}")
    print(f"balances of {len(balances)} customers, as worked out by hand: {dict(expected) == balances}")
    print(f"outside the queue: {len(lines)} orders written to a file, {twice} of them more than once")
    print("the ledger and the ack are one transaction; a file, or a mail, is not: make such effects idempotent, or fence them")
    assert sorted(should_be) == ledger
    assert dict(expected) == balances
    assert len(killed_at) == KILLS
    assert twice >= 1
    assert stats.depth == 0
    assert problems == []


if __name__ == "__main__":
    if len(sys.argv) > 1:
        book(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
