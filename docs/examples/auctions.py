"""Auctions: the bids of one auction strictly in order, all auctions in parallel. Run it: python auctions.py

Three bidders bid in threads of their own. A worker handles up to eight auctions at once. The highest bid of an auction is
in its key state, which commits together with the ack of the bid that changed it. At the end everything is worked out a
second time, from what was sent alone, and compared.
"""

import json
import random
import tempfile
import threading
import time
from collections import Counter, defaultdict

import strictq

AUCTIONS = [f"auction-{n}" for n in range(1, 13)]
BIDS_EACH = 200  # of each bidder
WORK_SECONDS = 0.002  # what looking at a bid takes

sent = defaultdict(dict)  # auction → seq → (bidder, cents): what the bidders were told
busy, most_busy, together = Counter(), Counter(), [0]  # who is at work, to see it for ourselves
lock = threading.Lock()


def bid(q, bidder):
    """One bidder: random bids on random auctions."""
    chance = random.Random(bidder)
    for _ in range(BIDS_EACH):
        auction, cents = chance.choice(AUCTIONS), chance.randrange(100, 100_000)
        receipt = q.send(json.dumps([bidder, cents]).encode(), key=auction)
        sent[auction][receipt.seq] = (bidder, cents)


def handle(job):
    """Higher than the highest so far? The new highest and the announcement commit with the ack, or none of the three."""
    with lock:
        busy[job.key] += 1
        most_busy[job.key] = max(most_busy[job.key], busy[job.key])
        together[0] = max(together[0], sum(busy.values()))
    time.sleep(WORK_SECONDS)
    bidder, cents = json.loads(job.body)
    highest = json.loads(job.key_state or b'{"cents": 0, "raised": 0}')
    if cents > highest["cents"]:
        job.key_state = json.dumps({"bidder": bidder, "cents": cents, "raised": highest["raised"] + 1}).encode()
        job.send(b"%s: %d" % (job.key.encode(), cents), key="announcements")
    with lock:
        busy[job.key] -= 1


def by_hand(bids):
    """The same from what was sent: the winner, and how often the highest bid was raised, which depends on the order."""
    best, raised = (None, 0), 0
    for seq in sorted(bids):
        if bids[seq][1] > best[1]:
            best, raised = bids[seq], raised + 1
    return {"bidder": best[0], "cents": best[1], "raised": raised}


def main(path):
    with strictq.open(path, durability="process") as q:
        bidders = [threading.Thread(target=bid, args=(q, name)) for name in ("ann", "bob", "cat")]
        for thread in bidders:
            thread.start()
        for thread in bidders:
            thread.join()

        began = time.monotonic()
        strictq.Worker(q, handle, keys=AUCTIONS, concurrency=8).run(drain=True)
        took = time.monotonic() - began

        wrong = 0
        for auction in AUCTIONS:
            with q.transaction(key=auction) as tx:
                found = json.loads(tx.key_state)
            right = found == by_hand(sent[auction])
            wrong += not right
            print(
                f"{auction:10}  {len(sent[auction]):3} bids, raised {found['raised']} times: "
                f"{found['bidder']} gets it for {found['cents'] / 100:.2f}{'' if right else '  WRONG'}"
            )
        count = sum(map(len, sent.values()))
        raised = sum(by_hand(bids)["raised"] for bids in sent.values())
        announced = len(q.peek("announcements", 10_000))
        print(f"\n{count} bids in {took:.1f} s; one after the other they would take {count * WORK_SECONDS:.1f} s or more")
        print(f"auctions handled at once: up to {together[0]}; bids of one auction at once: up to {max(most_busy.values())}")
        print(f"announcements: {announced} of {raised}; auctions that differ from what was worked out by hand: {wrong}")
        assert wrong == 0
        assert announced == raised
        assert set(most_busy.values()) == {1}
        assert q.check() == []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(f"{place}/auctions.strictq")
