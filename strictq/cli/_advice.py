"""Hints in terms of commands and options, for errors whose library hints name Python calls."""

from __future__ import annotations

from typing import Any, Final

from strictq import StrictqError
from strictq._values.hints import Coded

_LOOKS: Final = "this command writes to the queue's files; strictq stats, explain and peek only read them"
_KEYLESS: Final = "give --key KEY or --key-field FIELD, or: strictq config QUEUE keyless=random"
WORDS: Final[dict[str, str]] = {
    "queue_not_found": "check the path, or create the queue: strictq create QUEUE",
    "message_too_large": "raise the limit: strictq config QUEUE max_body_bytes=BYTES; or send a reference to the data",
    "queue_full": "wait for consumers to catch up, or raise the limit: strictq config QUEUE max_depth=MESSAGES",
    "tenant_full": "wait for consumers to catch up, or raise the limit: strictq limit QUEUE TENANT --max-depth MESSAGES",
    "key_full": "wait for consumers to catch up, or raise the limit: strictq config QUEUE max_key_depth=MESSAGES",
    "store_corrupt": "restore the file from a backup, or salvage the queue: strictq check QUEUE --salvage OUT",
    "salvage_parcel": "salvage the queue, which keeps what left with the parcel: strictq check QUEUE --salvage OUT",
    "outcome_unknown": "the change may or may not have been made: look with strictq stats, and repeat the command if necessary",
    "partial_failure": "what succeeded stays done; fix the cause and repeat the command",
    "throttled": "send again later, or raise the limit: strictq limit QUEUE TENANT --send-rate NUMBER",
    "only_reads": "use SELECT on app_* tables; the program that owns a table writes it",
    "pass_process_seconds": "give it with --process-seconds SECONDS, the mean duration of a message",
    "set_separator": "set it first: strictq config QUEUE tenant_separator=/",
    "lease_lost": "the message was settled by another process, or it is delivered again to the key's next consumer",
    "lease_over": "the message will be delivered again; use a longer --lease if processing takes that long",
    # Bugs of the command itself, about which its user can do nothing.
    "queue_closed": "",
    "read_only_queue": "",
    "forked_process": "",
    "forward_pending": "",
    "recorded_batch_gone": "",
    "server_refused": "",
    "server_unreachable": "",
    "connect_again": "",
    "connect_url": "give the directory of a queue",
    "open_directory": "give the directory of a queue, or the URL of one behind an SQS endpoint",
    "credentials": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of boto3's credentials; strictq serve sqs without "
        "--keys-file accepts any"
    ),
    "pass_lease_seconds": "use --lease, or raise the queue's visibility timeout",
    "configure_keyless": _KEYLESS,
    "let_keyless": _KEYLESS,
    "look_read_only": _LOOKS,
    "open_read_only": _LOOKS,
    "check_arguments": (
        "integers need 64 bits at most, text needs UTF-8; if every argument has that, look for damage: strictq check QUEUE"
    ),
    "migrate": "close the queue in every process, then run strictq migrate QUEUE",
    "open_for_repair": "repair it with strictq check QUEUE --fix",
    "leave_shards_out": "leave --shards out; to add a shard, divide one: strictq shards split QUEUE SHARD",
    "name_key_columns": "empty the table, or let the program name the column with its keys (key_columns of app_schema)",
    "pass_shard": "pass --shard and --after with the shard and the n of the last record",
    "long_pause": "accept that with --long-pause, or consume some of the messages first",
    "one_move": "wait until it has ended, or cancel it: strictq shards cancel QUEUE",
    "see_topology": "see what each shard owns: strictq shards QUEUE",
    "leave_durability_out": "leave --durability out; a queue keeps the durability that it was created with",
    "tenant_paused": "seq {seq} waits because tenant {tenant} is paused; strictq limit QUEUE {tenant} --resume ends that",
    "paused": "seq {seq} waits because the queue is paused; strictq resume QUEUE ends that{rest}",
    "leave_settings_out": "change a setting with strictq config QUEUE NAME=VALUE",
    "consumer_busy_force": "stop its query, or use --force: the query is fenced and fails at its next write",
    "in_recorded_batch": (
        "{what} in batch {n} of consumer {by}, until the batch is acked or released with strictq release --consumer {by}{rest}"
    ),
    "put_in_service": (
        "when the original is out of service, put this one in service: strictq replicate {path} --to TARGET, or --alone for no "
        "replica; if the original stays in service: strictq adopt {path}"
    ),
    "primary_alive": "stop the processes of the primary, wait ten seconds and try again; or --force if no client can reach it",
    "promote": "write to its primary, or, if that is lost: strictq promote {path}",
    "promote_again": "if no process is promoting it, run it again: strictq promote {path}",
    "give_replica": "use the directory that was passed to strictq replica",
    "end_replica": "end the strictq replica process, which may be suspended or hang, and try again",
    "start_replica": "start it: strictq replica {path} --listen HOST:PORT --token-file FILE",
    "close_looks": "end the programs that have it open for reading",
    "not_to_restore": "promote the replica on its host: strictq promote PATH; restore needs a directory or s3://BUCKET/PREFIX",
    "use_tls": "use --certificate for the replica and tcps:// for its primary; or --plaintext in a private network",
    "certificate_of_replica": "use --authority FILE with the authority of the replica's certificate, which must name its host",
    "replica_runs": "check that strictq replica runs there and that its port can be reached; shipping then resumes",
    "points_are": "list the states that can be restored: strictq replicas {target} --points",
    "cut_before": "the newest state before it is from {at}: restore it with --cut {cut}",
    "choose_cut": "choose one by its number: --cut {cut}",
    "configure_again": "replicate again, to this or another target: strictq replicate QUEUE --to TARGET",
    "not_confirmed": (
        "check the replica and the network, then run it again: a repeated ack is safe, a repeated send with the same dedup id"
    ),
    "leave_confirmed": (
        "start the replica, so that it learns of this; or use --force: a promotion of that replica may then lose messages"
    ),
    "unfence": "use the promoted queue; or --detach --force, and both queues deliver the same messages",
    "confirms_not": "use a store that honours conditional writes, a directory or a replica; or leave --confirmed out",
    "diverged": (
        "decide which of the two histories to keep, and replicate it to a different, empty directory; make a copied directory a "
        "queue of its own: strictq adopt QUEUE"
    ),
    "rejoin": "if its replica was promoted, use --rejoin: the directory is moved to {path}.diverged-TERM and not deleted",
    "one_shard_or_key": "use a queue that was created with --shards 1, or leave dedup_scope as it is",
    "finish_election": "finish the promotion: run strictq promote again on the host where it began, or on another member",
    "majority": "start the members that do not answer; if they are lost for good: strictq promote PATH --force",
    "form_chain": "form it on the primary's host: strictq members QUEUE --form TARGET --form TARGET",
    "no_member": "promote a member, see strictq members PATH; to use this host again, start an empty replica",
    "forward_or_drop": (
        "start it with --forward-to, or drop that member on the primary's host: strictq members QUEUE --drop TARGET"
    ),
    "show_members": "show the members: strictq members PATH",
    "replica_gap": "restore an earlier state; list them with strictq replicas TARGET --points",
    "leased_reject": "use --force to end the lease; what its consumer does with it later is refused",
    "lane_held": "the key is held ({by}); release it with strictq release{rest}",
}
"""The command line's wording of a hint, by the hint's code, with the same parameters."""


def in_words(text: Any) -> Any:
    """Return the command line's wording of a library hint. Return any other text unchanged."""
    if not isinstance(text, Coded):
        return text
    template = WORDS.get(text.code, text.template)
    if not text.parameters:
        return template
    return template.format(**{name: in_words(value) for name, value in text.parameters.items()})


def hint_of(error: StrictqError) -> str:
    """Return an error's hint in terms of commands; "" if there is none."""
    return str(in_words(error.hint))
