"""`strictq replica`, `strictq promote` and `strictq members`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import strictq
from strictq.cli._arguments import PATH, Seconds, json_option, quiet_option
from strictq.cli._command import OK, WRONG, Stopping, command, many, printable, tell
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
strictq members a.strictq --form tcps://b:7400 --form tcps://c:7400 --token-file token
strictq members a.strictq --token-file token
strictq members a.strictq --drop tcp://127.0.0.1:7401 --token-file token
""",
}
LOOK_SECONDS: Final = 0.2
LOST: Final = {
    False: "later commits are missing",
    True: "it waited for this replica, so every commit whose call returned is here",
}
"""What a promotion loses, depending on whether the primary was in confirmed mode."""


@command(EXAMPLES["replica"])
@click.argument("path", type=PATH, metavar="PATH", help="The replica's directory. Created if it is missing.")
@click.option("--listen", required=True, metavar="HOST:PORT", help="The address to listen on. Port 0: any free port.")
@click.option("--token-file", required=True, type=PATH, metavar="FILE", help="The file with the token that the primary sends.")
@click.option("--certificate", type=PATH, metavar="FILE", help="Use TLS with this certificate (PEM).")
@click.option("--key", "private_key", type=PATH, metavar="FILE", help="The certificate's private key, if it is in another file.")
@click.option("--plaintext", is_flag=True, help="The network is private: do not require TLS.")
@click.option("--key-file", type=PATH, metavar="FILE", help="The file with the secret that authenticates the segments.")
@click.option("--queue-id", metavar="ID", help="The only queue that may ship to this replica. Default: the first that does.")
@click.option("--forward-to", metavar="TARGET", help="Forward to the next replica of a chain, tcps://HOST:PORT.")
@click.option("--authority", type=PATH, metavar="FILE", help="With --forward-to: the authority of that replica's certificate.")
@click.option("--verify", type=Seconds(min=1), default=3600.0, help="Seconds between two proofs that it can be promoted.")
@click.option("--rejoin", is_flag=True, help="If PATH is a queue whose replica was promoted, move it to PATH.diverged-TERM.")
@quiet_option
@json_option
def replica(
    path: Path, listen: str, token_file: Path, certificate: Path | None, private_key: Path | None, plaintext: bool,
    key_file: Path | None, queue_id: str | None, forward_to: str | None, authority: Path | None, verify: float, rejoin: bool,
    quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Run a replica: receive a queue's changes from its primary until Ctrl-C, and keep a copy that can be promoted.

    On the primary, run: strictq replicate QUEUE --to tcps://HOST:PORT --token-file FILE.
    While the replica runs, you can inspect PATH with strictq stats, peek, explain, dead and check.

    It regularly promotes and checks a copy of itself, which needs the queue's size on its disk, and prints why if that fails.

    Exit code 0: stopped by a signal. 1: the replica is damaged, another process runs it, or the last promotion of a copy failed.
    2: invalid usage.
    """
    with Stopping() as stopping, strictq.Replica(
        path, listen=listen, token_file=token_file, certificate=certificate, private_key=private_key, plaintext=plaintext,
        key_file=key_file, queue_id=queue_id, forward_to=forward_to, authority=authority, verify_seconds=verify,
        rejoin=rejoin,
    ) as receiving:  # fmt: skip
        if receiving.moved_aside is not None:
            tell(f"strictq: moved the old queue to {printable(receiving.moved_aside)}")
        if not quiet:
            tell(f"strictq: receiving for {printable(receiving.path)} at {receiving.address}")
        shown = ""
        while stopping.asked is None and not receiving.wait(LOOK_SECONDS):
            if (receiving.error or "") != shown:
                shown = receiving.error or ""
                tell(f"strictq: {shown}" if shown else "strictq: the replica works again")
        if as_json:
            found = {"path": receiving.path, "address": receiving.address, "promoted": receiving.promoted, "error": shown or None,
                     "moved_aside": receiving.moved_aside, "proof": receiving.proof.to_dict()}  # fmt: skip
            emit(found)
        unproven = receiving.proof.error is not None and not receiving.promoted
    return WRONG if unproven else OK


@command(EXAMPLES["promote"])
@click.argument("path", type=PATH, metavar="PATH", help="The replica's directory, on this host.")
@click.option("--force", is_flag=True, help="Promote even if the primary was in contact within the last ten seconds.")
@click.option("--dead", is_flag=True, help="The primary's consumers are dead: end their leases at once.")
@click.option("--key-file", type=PATH, metavar="FILE", help="The file with the secret that authenticates the segments.")
@click.option("--token-file", type=PATH, metavar="FILE", help="In a chain: the file with the token of its members.")
@click.option("--authority", type=PATH, metavar="FILE", help="In a chain: the authority of the members' certificates.")
@click.option("--decider", metavar="COMMAND", help="In a chain: run this command, without a shell, instead of the members' vote.")
@click.option("--dry-run", is_flag=True, help="Show the state that would be promoted and what is missing; change nothing.")
@quiet_option
@json_option
def promote(
    path: Path, force: bool, dead: bool, key_file: Path | None, token_file: Path | None, authority: Path | None,
    decider: str | None, dry_run: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """Turn a replica into a queue because its primary is lost. Commits after the last received segment are lost.

    The old primary is refused from then on. The promotion is refused while the primary may be alive, because both queues would
    deliver the same messages. Repeating a promotion changes nothing. In a chain, a majority of the members must agree.

    Exit code 0: done. 1: the primary may be alive, or a process does not close the replica. 2: invalid usage, or there is no
    such replica.
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
            print("its primary was never in contact")
        else:
            print(f"last contact: {utc(done.contact_at)}, {span(done.silent_seconds)} ago; {LOST[done.confirmed]}")
        if done.missing_segments:
            print(f"a later state arrived incomplete and is discarded: {many(done.missing_segments, 'segment')}")
        if done.alive and dry_run:
            print("the primary may be alive: --force would be needed")
    return OK


@command(EXAMPLES["members"])
@click.argument("path", type=PATH, metavar="PATH", help="The directory of the queue or of a replica, on this host.")
@click.option("--form", multiple=True, metavar="TARGET", help="Form a chain of the queue and this replica. Repeatable.")
@click.option("--add", metavar="TARGET", help="Add a replica that already receives changes.")
@click.option("--drop", metavar="TARGET", help="Remove a replica. It can no longer be promoted.")
@click.option("--token-file", type=PATH, metavar="FILE", help="The file with the token of all replicas.")
@click.option("--authority", type=PATH, metavar="FILE", help="The authority of the replicas' certificates.")
@click.option("--plaintext", is_flag=True, help="The network is private: connect without TLS.")
@json_option
def members(
    path: Path, form: tuple[str, ...], add: str | None, drop: str | None, token_file: Path | None, authority: Path | None,
    plaintext: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show the members of a chain of replicas, or change them. A majority of the members must agree to a change.

    TARGET is a replica's address, tcps://HOST:PORT.

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
