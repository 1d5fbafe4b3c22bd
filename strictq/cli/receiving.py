"""`strictq replica`, `strictq promote` and `strictq members`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import strictq
from strictq.cli._arguments import PATH, json_option, quiet_option
from strictq.cli._command import OK, Stopping, command, many, printable, tell
from strictq.cli._render import listing
from strictq.cli._words import emit, span, utc

EXAMPLES: Final = {
    "replica": """
strictq replica orders.replica --listen 127.0.0.1:7400 --token-file token
strictq replica orders.replica --listen 10.0.0.2:7400 --token-file token --certificate own.pem
strictq replica a.strictq --listen 10.0.0.1:7400 --token-file token --certificate a.pem --rejoin
strictq replica b --listen 127.0.0.1:7400 --token-file token --forward-to tcp://127.0.0.1:7401
""",
    "promote": """
strictq promote orders.replica --dry-run
strictq promote orders.replica
strictq promote orders.replica --force --dead
strictq promote c.replica --token-file token
""",
    "members": """
strictq members a.strictq --form tcp://127.0.0.1:7400 --form tcp://127.0.0.1:7401 --token-file token
strictq members a.strictq --token-file token
strictq members a.strictq --drop tcp://127.0.0.1:7401 --token-file token
""",
}
LOOK_SECONDS: Final = 0.2
LOST: Final = {
    False: "what was committed later is missing",
    True: "its calls waited for this replica: what they returned is here",
}
"""What a promotion loses, depending on whether the primary was in confirmed mode."""


@command(EXAMPLES["replica"])
@click.argument("path", type=PATH, metavar="PATH", help="The replica's directory. It is made if it is missing.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where its primary finds it. Port 0: any that is free.")
@click.option("--token-file", required=True, type=PATH, metavar="FILE", help="The token that its primary shows.")
@click.option("--certificate", type=PATH, metavar="FILE", help="Receive over TLS, with this certificate (PEM).")
@click.option("--key", "private_key", type=PATH, metavar="FILE", help="The certificate's private key, if it is in another file.")
@click.option("--plaintext", is_flag=True, help="Receive without TLS at an address of a network that is private.")
@click.option("--key-file", type=PATH, metavar="FILE", help="The secret that segments are keyed with.")
@click.option("--queue-id", metavar="ID", help="The only queue that may ship to it. Default: the first that does.")
@click.option("--forward-to", metavar="TARGET", help="Ship on to this next replica of a chain, tcps://HOST:PORT.")
@click.option("--authority", type=PATH, metavar="FILE", help="With --forward-to: the authority of that replica's certificate.")
@click.option("--rejoin", is_flag=True, help="If PATH is a queue whose replica was promoted, move it away first.")
@quiet_option
@json_option
def replica(
    path: Path, listen: str, token_file: Path, certificate: Path | None, private_key: Path | None, plaintext: bool,
    key_file: Path | None, queue_id: str | None, forward_to: str | None, authority: Path | None, rejoin: bool, quiet: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Receive a queue's changes from its primary on another host, until Ctrl-C, and keep a copy that can be promoted.

    The primary ships with: strictq replicate QUEUE --to tcps://HOST:PORT --token-file FILE.
    Look at the copy with strictq stats PATH, peek, explain, dead and check, while this runs.

    Exit code 0: it was asked to end. 1: the replica is damaged, or another process receives for it. 2: wrong usage.
    """
    with Stopping() as stopping, strictq.Replica(
        path, listen=listen, token_file=token_file, certificate=certificate, private_key=private_key, plaintext=plaintext,
        key_file=key_file, queue_id=queue_id, forward_to=forward_to, authority=authority, rejoin=rejoin,
    ) as receiving:  # fmt: skip
        if receiving.moved_aside is not None:
            tell(f"strictq: the queue that was there is {printable(receiving.moved_aside)} now")
        if not quiet:
            tell(f"strictq: receiving for {printable(receiving.path)} at {receiving.address}")
        told = ""
        while stopping.asked is None and not receiving.wait(LOOK_SECONDS):
            if (receiving.error or "") != told:
                told = receiving.error or ""
                tell(f"strictq: {told}" if told else "strictq: changes are applied again")
        if as_json:
            found = {"path": receiving.path, "address": receiving.address, "promoted": receiving.promoted, "error": told or None,
                     "moved_aside": receiving.moved_aside}  # fmt: skip
            emit(found)
    return OK


@command(EXAMPLES["promote"])
@click.argument("path", type=PATH, metavar="PATH", help="The replica's directory, on this host.")
@click.option("--force", is_flag=True, help="Also if the primary was heard of in the last ten seconds.")
@click.option("--dead", is_flag=True, help="The primary's consumers are dead: end their leases at once.")
@click.option("--key-file", type=PATH, metavar="FILE", help="The secret that segments are keyed with.")
@click.option("--token-file", type=PATH, metavar="FILE", help="In a chain: the token of its members.")
@click.option("--authority", type=PATH, metavar="FILE", help="In a chain: the authority of their certificates.")
@click.option(
    "--decider", metavar="COMMAND", help="In a chain: run this command, without a shell, in place of the members' votes."
)
@click.option("--dry-run", is_flag=True, help="Only show what the queue would be, and what is known to be missing.")
@quiet_option
@json_option
def promote(
    path: Path, force: bool, dead: bool, key_file: Path | None, token_file: Path | None, authority: Path | None,
    decider: str | None, dry_run: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Make a queue of a replica because its primary is lost. What the primary committed after the last segment is lost.

    The primary is refused from then on. Refused itself while the primary may live: two queues that go on from the same messages
    would hand out each of them twice. Promoting again does nothing more. In a chain, a majority of the members must agree.

    Exit code 0: done. 1: the primary may live, or a process does not let go. 2: wrong usage, or there is no such replica.
    """
    done = strictq.promote(
        path, force=force, dead=dead, key_file=key_file, dry_run=dry_run, token_file=token_file, authority=authority,
        decider=decider,
    )  # fmt: skip
    if as_json:
        emit(done.to_dict())
    elif not quiet:
        what = "would be" if dry_run else "is"
        print(f"{printable(done.path)} {what} the queue as of {utc(done.at)} (segment {done.segment:,}), in term {done.term}")
        if done.contact_at is None or done.silent_seconds is None:
            print("its primary was never heard of")
        else:
            print(f"last contact: {utc(done.contact_at)}, {span(done.silent_seconds)} ago; {LOST[done.confirmed]}")
        if done.missing_segments:
            print(f"a later state did not arrive whole, and is given up: {many(done.missing_segments, 'segment')}")
        if done.alive and dry_run:
            print("the primary may live: --force would be needed")
    return OK


@command(EXAMPLES["members"])
@click.argument("path", type=PATH, metavar="PATH", help="The queue, or a replica's directory, on this host.")
@click.option("--form", multiple=True, metavar="TARGET", help="Make a chain of the queue and these replicas, tcps://HOST:PORT.")
@click.option("--add", metavar="TARGET", help="Add a replica that receives already.")
@click.option("--drop", metavar="TARGET", help="Drop a replica. It cannot be promoted any more.")
@click.option("--token-file", type=PATH, metavar="FILE", help="The token of all replicas.")
@click.option("--authority", type=PATH, metavar="FILE", help="The authority of their certificates.")
@click.option("--plaintext", is_flag=True, help="Reach replicas without TLS in a network that is private.")
@json_option
def members(
    path: Path, form: tuple[str, ...], add: str | None, drop: str | None, token_file: Path | None, authority: Path | None,
    plaintext: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show the members of a chain, or change them. A majority of the members must agree to a change.

    Exit code 0: done. 1: no majority answered; nothing was changed. 2: invalid usage, or there is no chain.
    """
    found = strictq.members(path, form=form, add=add, drop=drop, token_file=token_file, authority=authority, plaintext=plaintext)
    if as_json:
        emit(found.to_dict())
        return OK
    print(f"{many(len(found.members), 'member')}, version {found.version}, term {found.term}")
    rows = [
        (
            "this host" if m.address is None and m.here else printable(m.address or "the first primary"),
            "primary" if m.primary else "replica",
            "-" if m.version is None else f"{m.version}",
            printable(m.error or ""),
        )
        for m in found.members
    ]
    listing(("member", "role", "version", "error"), rows, right=("version",))
    return OK
