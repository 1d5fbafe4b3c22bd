"""Hints in terms of commands and options, for errors whose library hints name Python calls."""

from __future__ import annotations

from typing import Any, Final

from strictq import StrictqError
from strictq._hints import Coded

_LOOKS: Final = "this command writes to the queue's files; strictq stats, explain and peek only read them"
_KEYLESS: Final = "give --key KEY or --key-field FIELD, or: strictq config QUEUE keyless=random"
WORDS: Final[dict[str, str]] = {
    "queue_not_found": "check the path, or create the queue: strictq create QUEUE",
    "message_too_large": "raise the limit: strictq config QUEUE max_body_bytes=BYTES; or send a reference to the data",
    "queue_full": "wait for consumers to catch up, or raise the limit: strictq config QUEUE max_depth=MESSAGES",
    "store_corrupt": "restore the file from a backup, or salvage the queue: strictq check QUEUE --salvage OUT",
    "outcome_unknown": "the change may or may not have been made: look with strictq stats, and repeat the command if necessary",
    "partial_failure": "what succeeded stays done; fix the cause and repeat the command",
    "lease_lost": "another consumer holds the key now and will process the message",
    "lease_over": "the message will be delivered again; use a longer --lease if processing takes that long",
    # Bugs of the command itself, about which its user can do nothing.
    "queue_closed": "",
    "read_only_queue": "",
    "forked_process": "",
    "forward_pending": "",
    "handout_gone": "",
    "server_refused": "",
    "server_unreachable": "",
    "configure_keyless": _KEYLESS,
    "let_keyless": _KEYLESS,
    "look_read_only": _LOOKS,
    "open_read_only": _LOOKS,
    "check_arguments": (
        "integers need 64 bits at most, text needs UTF-8; if every argument has that, look for damage: strictq check QUEUE"
    ),
    "migrate": "close the queue in every process, then run strictq migrate QUEUE",
    "open_for_repair": "repair it with strictq check QUEUE --fix",
    "leave_shards_out": "leave --shards out; the number of shards cannot be changed",
    "leave_durability_out": "leave --durability out; a queue keeps the durability that it was created with",
    "leave_settings_out": "change a setting with strictq config QUEUE NAME=VALUE",
    "consumer_busy_force": "stop its query, or use --force: the query is fenced and fails at its next write",
    "in_handout": (
        "{what} in batch {n} of consumer {by}, until the batch is acked or released with strictq release --consumer {by}{rest}"
    ),
    "put_in_service": (
        "when the original is out of service, put this one in service: strictq replicate {path} --to TARGET, or --alone for no "
        "replica"
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
SAME: Final = frozenset(
    """
    merge_fork target_unavailable confirming_target fenced token_file same_release
    other_directory target_is empty_target again_from_newer store_credentials key_file key_of_replica
    consumer_busy consumer_lost store_busy store_full schema_mismatch install_pyspark settled_already other_queue_object
    give_reason give_handle open_its_queue names_in_utf8 one_key settle_earlier install_extra handler_yields
    checkpoint_too_old run_batch_again only_app_tables sql_too_long value_too_large install_apsw fork_outside open_again
    use_transaction
    unpack_apsw apsw_wheel one_kernel no_descriptors not_a_directory not_a_queue salvage_older salvage_runs new_path
    close_everywhere open_writable unlink remove_or_restore chmod define_at_top another_worker export_beside
    export_alone export_each export_name another_path export_damaged export_foreign export_missing let_it_finish
    see_history move_away export_elsewhere another_directory longer_windows batch_differs same_key_type choose_key_type
    prepare_keys prepared_columns rename_column same_version run_task_again install_java java_version leave_key_type_out
    declare_nullable read_batch name_query encode_json give_announce see_stderr host_and_port give_pem name_write
    own_job two_writes
    own_checkpoint new_checkpoint cast_column same_interpreter options_are columns_are select_columns install_there never_sent
    replica_is promote_other elected_other decider feed_first more_threads base_follows
    empty leased delayed ready quarantined did_you_mean settings_are not_a_url no_home cron_fields zone_names name_schedule
    change_directory
    """.split()  # noqa: SIM905
)
"""Codes of hints that are the same for a program and at the command line."""
NO_COMMAND: Final = frozenset(
    """
    handler_shape encode_body convert_key total_seconds make_config
    use_async_with use_ack transaction_of_key use_tx_methods stop_worker use_threads
    guard_main use_execute await_serve read_binary keyless_rows certificate_host executors_need_server option_path
    with_key_state give_queue use_worker server_options_path serve_again server_options executors_or_again make_queue
    make_token append_only make_queue_in_driver all_columns rename_to jump_wall await_drain retry_failures
    use_fake_clock machine_open after_commit inside_message types_are raise_instead use_job_execute batch_or_single
    aware_datetime send_path share_handle json_body name_of_schedule key_and_seq
    option_of option_called option_backlog option_available_now
    option_trigger_interval option_no_loss option_kafka_client option_oldest_first option_ttl option_acked_removed
    option_no_files option_parse_bodies filter_keys local_path on_disk one_path
    path_or_paths paths_list paths_pattern no_match queue_back fail_on_missing one_queue_option fleet_checkpoint one_copy
    body_column leave_column_out insert_job consumer_in_query executors_as_owner classic_session
    """.split()  # noqa: SIM905
)
"""Codes of hints that name Python calls in parts of the library that no command uses."""


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
