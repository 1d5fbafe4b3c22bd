"""What to do about an error in the words of the command line, where the library's sentences speak of calls."""

from __future__ import annotations

from typing import Any, Final

from strictq import StrictqError
from strictq._hints import Coded

_LOOKS: Final = "this command writes to the queue's files; strictq stats, explain and peek only look"
_KEYLESS: Final = "give --key KEY or --key-field FIELD, or: strictq config QUEUE keyless=random"
WORDS: Final[dict[str, str]] = {
    "queue_not_found": "check the path, or make the queue: strictq create QUEUE",
    "message_too_large": "raise the limit: strictq config QUEUE max_body_bytes=BYTES; or send a reference to the data",
    "queue_full": "wait for consumers to catch up, or raise the limit: strictq config QUEUE max_depth=MESSAGES",
    "store_corrupt": "restore the file from a backup, or save what can be saved: strictq check QUEUE --salvage OUT",
    "outcome_unknown": "it happened, or it did not: look with strictq stats, and repeat the command if need be",
    "partial_failure": "what succeeded stays done: put right what is wrong, and repeat the command",
    "lease_lost": "somebody else has the message now, and will do it",
    "lease_over": "the message is delivered again; give a longer --lease if its work takes so long",
    # These say that the command itself did something wrong: whoever gave it can do nothing.
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
    "migrate": "end every process that has the queue open, and run strictq migrate QUEUE",
    "open_for_repair": "strictq check QUEUE --fix repairs it",
    "leave_shards_out": "leave --shards out: it stays as it is",
    "leave_durability_out": "leave --durability out: it stays as it is",
    "leave_settings_out": "it stays as it is; to change a setting: strictq config QUEUE NAME=VALUE",
    "consumer_busy_force": "stop its query; or give --force, too: it is fenced, and fails at its next write",
    "in_handout": (
        "{what} in hand-out {n} of consumer {by}, until it is acked or strictq release --consumer {by} gives it back{rest}"
    ),
    "put_in_service": (
        "once the original is out of service: strictq replicate {path} --to TARGET, or --alone to use it without a replica"
    ),
    "points_are": "strictq replicas {target} --points lists the states that can be restored",
    "choose_cut": "say which one by its number: --cut {cut}",
    "configure_again": "ship again, there or elsewhere: strictq replicate QUEUE --to TARGET",
    "replica_gap": "restore a state before it: strictq replicas TARGET --points lists them",
    "lane_held": "the lane is held ({by}): release it with strictq release{rest}",
}
"""By the code of a sentence: what is said instead, with the same parameters."""
SAME: Final = frozenset(
    """
    target_unavailable diverged other_directory target_is empty_target again_from_newer store_credentials key_file key_of_replica
    consumer_busy consumer_lost store_busy store_full schema_mismatch install_pyspark settled_already other_queue_object
    give_reason give_handle open_its_queue names_in_utf8 one_key settle_earlier install_extra handler_yields
    checkpoint_too_old run_batch_again only_app_tables sql_too_long install_apsw fork_outside open_again use_transaction
    unpack_apsw apsw_wheel one_kernel no_descriptors not_a_directory not_a_queue salvage_runs leased_reject new_path
    close_everywhere open_writable unlink remove_or_restore chmod define_at_top another_worker export_beside
    export_alone export_each export_name another_path export_damaged export_foreign export_missing let_it_finish
    see_history move_away export_elsewhere another_directory longer_windows batch_differs same_key_type choose_key_type
    prepare_keys prepared_columns rename_column same_version run_task_again install_java java_version leave_key_type_out
    declare_nullable read_batch name_query encode_json give_announce see_stderr host_and_port give_pem name_write
    own_checkpoint cast_column same_interpreter options_are columns_are select_columns install_there never_sent empty
    leased delayed ready quarantined did_you_mean settings_are not_a_url no_home cron_fields zone_names name_schedule
    """.split()  # noqa: SIM905
)
"""Codes of sentences that say the same to a program and at the command line."""
NO_COMMAND: Final = frozenset(
    """
    handler_shape encode_body use_async_with use_ack transaction_of_key use_tx_methods stop_worker use_threads
    guard_main use_execute await_serve read_binary keyless_rows certificate_host executors_need_server option_path
    with_key_state give_queue use_worker server_options_path serve_again server_options executors_or_again make_queue
    make_token append_only make_queue_in_driver all_columns rename_to jump_wall await_drain retry_failures
    use_fake_clock machine_open after_commit inside_message types_are raise_instead use_job_execute batch_or_single
    aware_datetime send_path share_handle json_body name_of_schedule key_and_seq
    option_of option_called option_backlog option_available_now
    option_trigger_interval option_no_loss option_kafka_client option_oldest_first option_ttl option_acked_removed
    option_no_files option_parse_bodies filter_keys local_path on_disk temporary_view one_path
    """.split()  # noqa: SIM905
)
"""Codes of sentences that speak of calls, in parts of the library that no command uses so."""


def in_words(text: Any) -> Any:
    """A sentence of the library in the words of the command line. Anything else stays as it is."""
    if not isinstance(text, Coded):
        return text
    template = WORDS.get(text.code, text.template)
    if not text.parameters:
        return template
    return template.format(**{name: in_words(value) for name, value in text.parameters.items()})


def hint_of(error: StrictqError) -> str:
    """What to do about it; "" where there is nothing to do."""
    return str(in_words(error.hint))
