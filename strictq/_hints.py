"""Every hint, and every other sentence that the command line says in its own words: the text, and a code that never changes.

An error's hint is one of these; a program, or `cli/_advice.py`, goes by its code. `of` fills in a text with names in braces.
"""

from __future__ import annotations

from typing import Any, Final


class Coded(str):
    """A sentence for a person that says by a code which one it is.

    Attributes:
        code: stable; snake case.
        template: the sentence before it was filled in.
        parameters: what it was filled in with.
    """

    code: str
    template: str
    parameters: dict[str, Any]

    def __new__(cls, code: str, template: str, parameters: dict[str, Any] | None = None) -> Coded:
        new = super().__new__(cls, template if parameters is None else template.format(**parameters))
        new.code, new.template, new.parameters = code, template, parameters or {}
        return new

    def of(self, **parameters: Any) -> Coded:
        """The sentence with these in it."""
        return Coded(self.code, self.template, parameters)

    def __reduce__(self) -> tuple[type[Coded], tuple[str, str, dict[str, Any] | None]]:
        return Coded, (self.code, self.template, self.parameters or None)


# ---- errors that have the same hint wherever they are raised

MESSAGE_TOO_LARGE: Final = Coded("message_too_large", "raise max_body_bytes with q.configure(), or send a reference to the data")
QUEUE_NOT_FOUND: Final = Coded("queue_not_found", "check the path, or open it without create=False and read_only=True")
QUEUE_CLOSED: Final = Coded("queue_closed", "open it again with strictq.open()")
READ_ONLY_QUEUE: Final = Coded("read_only_queue", "open it without read_only=True")
LEASE_LOST: Final = Coded("lease_lost", "drop the work on this message: whoever holds the key now will do it")
LEASE_OVER: Final = Coded(
    "lease_over",
    "drop the work on this message: it is delivered again; receive it with a longer lease_seconds, call d.extend() while you "
    "work, or use a Worker, which does",
)
QUEUE_FULL: Final = Coded("queue_full", "wait for consumers to catch up, or raise max_depth with q.configure()")
CONSUMER_BUSY: Final = Coded("consumer_busy", "stop the other holder (a query, say), or use another consumer name")
CONSUMER_LOST: Final = Coded("consumer_lost", "start again, if the other holder is not meant to go on")
HANDOUT_GONE: Final = Coded("handout_gone", "start with a new checkpoint: it begins after the last acknowledged hand-out")
SERVER_UNREACHABLE: Final = Coded(
    "server_unreachable",
    "the program that called strictq.spark.serve must still be running, and its address must be one that executors can reach",
)
SERVER_REFUSED: Final = Coded(
    "server_refused",
    "if the server was started again, start the query again, too; or give strictq.spark.serve the token that it had",
)
PARTIAL_FAILURE: Final = Coded("partial_failure", "look at .results: retry the items whose entry is a transient error")
FORWARD_PENDING: Final = Coded("forward_pending", "do not repeat the transaction: it happened")
FORKED_PROCESS: Final = Coded("forked_process", "open the queue again in the child process")
STORE_BUSY: Final = Coded("store_busy", "try again: another process holds the shard's write lock")
STORE_FULL: Final = Coded("store_full", "free disk space or let consumers drain the queue; sends resume by themselves")
STORE_CORRUPT: Final = Coded(
    "store_corrupt",
    "restore the file from a backup, or save what can be saved of the queue with strictq.salvage(path, out)",
)
SCHEMA_MISMATCH: Final = Coded("schema_mismatch", "upgrade strictq in this environment")
OUTCOME_UNKNOWN: Final = Coded(
    "outcome_unknown",
    "repeat the call: acks are idempotent under their token, sends under a dedup_id",
)
TARGET_UNAVAILABLE: Final = Coded(
    "target_unavailable",
    "see that the directory is there, mounted and writable, or the store reachable; shipping goes on by itself",
)
REPLICA_GAP: Final = Coded("replica_gap", "restore to a point in time before it: `strictq replicas TARGET` lists them")
DIVERGED: Final = Coded(
    "diverged", "find out which of the two is the one to go on with; then ship to another directory, which is empty"
)

# ---- replication

OTHER_DIRECTORY: Final = Coded("other_directory", "give a directory that is empty or missing, on another disk")
TARGET_IS: Final = Coded(
    "target_is", "give a directory, 'file:/mnt/backup/orders' or its path, or a place in an object store: 's3://bucket/orders'"
)
STORE_CREDENTIALS: Final = Coded(
    "store_credentials",
    "give this process credentials that may list, read, write and delete there, as for every AWS program: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine",
)
KEY_FILE: Final = Coded("key_file", "make one: head -c 32 /dev/urandom | base64 > FILE; keep it apart from the target")
KEY_OF_REPLICA: Final = Coded(
    "key_of_replica", "give the key file that it was configured with, or ship with another key to a target that is empty"
)
EMPTY_TARGET: Final = Coded("empty_target", "give a directory that is empty, missing, or this queue's own target")
PUT_IN_SERVICE: Final = Coded(
    "put_in_service",
    "once the original is out of service: `strictq replicate {path} --to TARGET`, or --alone to use it without a replica; "
    "read_only=True opens it in any case",
)
POINTS_ARE: Final = Coded("points_are", "`strictq replicas {target}` lists the points in time that can be restored")
CHOOSE_CUT: Final = Coded("choose_cut", "say which one by its number: cut={cut}")
CONFIGURE_AGAIN: Final = Coded("configure_again", "call q.configure_replication() again, with this or another target")
AGAIN_FROM_NEWER: Final = Coded("again_from_newer", "run it again: it begins with a newer base")

# ---- queues, messages and deliveries

CONSUMER_BUSY_FORCE: Final = Coded("consumer_busy_force", "stop it first, or give force=True to fence it")
INSTALL_PYSPARK: Final = Coded("install_pyspark", 'install 4.2 or newer: pip install "strictq[spark]"')
HANDLER_SHAPE: Final = Coded(
    "handler_shape",
    "define it with def or async def, without yield, and let it await or iterate over what it calls",
)
LET_KEYLESS: Final = Coded("let_keyless", "or let it have none: q.configure(keyless='random')")
SETTLED_ALREADY: Final = Coded("settled_already", "nothing is left to do for it: ack, nack or reject a delivery once")
KEY_AND_SEQ: Final = Coded("key_and_seq", "give key and seq, or the receipt that send returned")
RAISE_INSTEAD: Final = Coded("raise_instead", "raise Retry, Defer, Reject or any exception")
USE_JOB_EXECUTE: Final = Coded("use_job_execute", "use job.execute(), which runs with the ack")
BATCH_OR_SINGLE: Final = Coded("batch_or_single", "give process, which gets one job, or process_batch, which gets a list of them")
TYPES_ARE: Final = Coded("types_are", "the types with a handler: {types}")
AFTER_COMMIT: Final = Coded("after_commit", "read it after the with block of the transaction ended well")
OTHER_QUEUE_OBJECT: Final = Coded("other_queue_object", "settle it through the one that received it")
GIVE_REASON: Final = Coded("give_reason", "say why, for whoever looks at the dead letter")
ENCODE_BODY: Final = Coded("encode_body", "encode it, or use send_json() or Message.json()")
INSIDE_MESSAGE: Final = Coded("inside_message", "give the key and the options to the Message")
CRON_FIELDS: Final = Coded(
    "cron_fields", "give minute, hour, day of the month, month and day of the week, as in '30 3 * * MON-FRI' or '*/5 * * * *'"
)
ZONE_NAMES: Final = Coded("zone_names", "give an IANA name, such as 'Europe/Berlin' or 'UTC'; the package tzdata brings them")
NAME_OF_SCHEDULE: Final = Coded("name_of_schedule", "give each schedule of a handler a name of its own: name='...'")
NAME_SCHEDULE: Final = Coded("name_schedule", "give the schedule another name, and do not use that key for anything else")
AWARE_DATETIME: Final = Coded(
    "aware_datetime",
    "give it a time zone, as in datetime(2030, 1, 31, 8, tzinfo=ZoneInfo('Europe/Berlin')) or datetime.now(UTC)",
)
USE_ASYNC_WITH: Final = Coded("use_async_with", "use it inside `async with strictq.open_async(...)`")
USE_ACK: Final = Coded("use_ack", "use ack()")
GIVE_HANDLE: Final = Coded("give_handle", "give the str that d.handle returned")
OPEN_ITS_QUEUE: Final = Coded("open_its_queue", "open the queue that delivered the message")
NAMES_IN_UTF8: Final = Coded("names_in_utf8", "choose another directory, or give those in it names in UTF-8")
ONE_KEY: Final = Coded("one_key", "use a transaction for each key")
TRANSACTION_OF_KEY: Final = Coded("transaction_of_key", "use transaction(key=...)")
SETTLE_EARLIER: Final = Coded("settle_earlier", "settle the earlier messages of the key first")
INSTALL_EXTRA: Final = Coded("install_extra", 'pip install "strictq[{extra}]"')
HANDLER_YIELDS: Final = Coded(
    "handler_yields",
    "make {what} a function without yield, def or async def, that returns when its work is done",
)

SEND_PATH: Final = Coded("send_path", "give the other process the path, q.path, and open the queue there with strictq.open()")
SHARE_HANDLE: Final = Coded("share_handle", "give d.handle, a str, and use q.delivery(handle) there")
JSON_BODY: Final = Coded(
    "json_body", "send it with q.send_json(), or read d.body; raise Reject to dead-letter what can't be read"
)
SETTINGS_ARE: Final = Coded("settings_are", "the settings are {settings}")
NOT_A_URL: Final = Coded("not_a_url", "a queue is a directory: give its path, {path!r} for example")
NO_HOME: Final = Coded("no_home", "write the path in full; a directory whose name begins with ~ is './~…'")

# ---- the store

CONFIGURE_KEYLESS: Final = Coded("configure_keyless", "or configure the queue with keyless='random'")
CHECKPOINT_TOO_OLD: Final = Coded(
    "checkpoint_too_old",
    "its checkpoint is older than the queue's memory: start a new query where this one has got to",
)
RUN_BATCH_AGAIN: Final = Coded("run_batch_again", "run the batch again")
LEAVE_SHARDS_OUT: Final = Coded("leave_shards_out", "leave shards out to open it as it is")
LEAVE_SETTINGS_OUT: Final = Coded(
    "leave_settings_out",
    "leave these settings out to open it as it is, or change them with q.configure()",
)
LEAVE_DURABILITY_OUT: Final = Coded("leave_durability_out", "leave durability out to open it as it is")
OPEN_READ_ONLY: Final = Coded("open_read_only", "open the queue with read_only=True")
LOOK_READ_ONLY: Final = Coded("look_read_only", "to look only, use read_only=True")
ONLY_APP_TABLES: Final = Coded("only_app_tables", "name your tables app_…, and leave BEGIN, COMMIT, ATTACH and PRAGMA to strictq")
SQL_TOO_LONG: Final = Coded("sql_too_long", "add an index, or do less at once")
USE_TX_METHODS: Final = Coded(
    "use_tx_methods",
    "use tx.send, tx.execute or tx.key_state, or make this call before or after the with block",
)
INSTALL_APSW: Final = Coded("install_apsw", "install apsw>=3.51.3.0, but not 3.52.0.0")
CHECK_ARGUMENTS: Final = Coded(
    "check_arguments",
    "integers need 64 bits at most, text needs UTF-8; if every argument has that, look for damage with q.check()",
)
FORK_OUTSIDE: Final = Coded("fork_outside", "repeat it, and fork outside of it")
OPEN_AGAIN: Final = Coded("open_again", "open the queue again")
USE_TRANSACTION: Final = Coded("use_transaction", "use the transaction's own methods there")
UNPACK_APSW: Final = Coded("unpack_apsw", "install apsw from its wheel, unpacked in the file system")
APSW_WHEEL: Final = Coded("apsw_wheel", "install apsw from its wheel")
ONE_KERNEL: Final = Coded("one_kernel", "a queue belongs to one kernel at a time; close it there first")
NO_DESCRIPTORS: Final = Coded("no_descriptors", "close files or queues, or raise the limit of open files: ulimit -n")
NOT_A_DIRECTORY: Final = Coded("not_a_directory", "a queue is a directory; choose another path")
NOT_A_QUEUE: Final = Coded("not_a_queue", "check the path; a new queue needs one that does not exist")
SALVAGE_RUNS: Final = Coded("salvage_runs", "try again when its salvage is over")
OPEN_FOR_REPAIR: Final = Coded("open_for_repair", "open the queue once for writing, which repairs it")
LEASED_REJECT: Final = Coded("leased_reject", "its holder can reject it; or wait for the lease")
MIGRATE: Final = Coded(
    "migrate",
    "end every process that has the queue open, and migrate it: strictq.open(path, migrate=True), or strictq.migrate(path)",
)
NEW_PATH: Final = Coded("new_path", "choose a path that does not exist yet")
CLOSE_EVERYWHERE: Final = Coded("close_everywhere", "close it in every process, and try again")
OPEN_WRITABLE: Final = Coded("open_writable", "open it where the directory may be written")
UNLINK: Final = Coded(
    "unlink",
    "close the queue, and give the file a copy of its own: cp -p FILE FILE.new && mv FILE.new FILE; copy a queue "
    "with cp -a, not with ln, cp -al or rsync --link-dest",
)
REMOVE_OR_RESTORE: Final = Coded("remove_or_restore", "remove {path}, or restore it from a backup")
CHMOD: Final = Coded("chmod", "chmod 700 {path}")

# ---- the worker

STOP_WORKER: Final = Coded("stop_worker", "stop the worker, and close the queue when run() or serve() has returned")
USE_THREADS: Final = Coded("use_threads", "use executor='thread'")
GUARD_MAIN: Final = Coded("guard_main", "put what the program does under `if __name__ == '__main__':`")
USE_EXECUTE: Final = Coded("use_execute", "use job.execute, or executor='thread'")
DEFINE_AT_TOP: Final = Coded("define_at_top", "define it at the top level of a module")
AWAIT_SERVE: Final = Coded("await_serve", "use `await worker.serve()`")
ANOTHER_WORKER: Final = Coded("another_worker", "make another Worker")

# ---- exports and pictures of the history

EXPORT_BESIDE: Final = Coded("export_beside", "export to a directory beside it")
EXPORT_ALONE: Final = Coded("export_alone", "give the export a directory of its own")
EXPORT_EACH: Final = Coded("export_each", "give each queue a directory of its own")
EXPORT_NAME: Final = Coded("export_name", "give it back its own name")
ANOTHER_PATH: Final = Coded("another_path", "choose another path")
EXPORT_DAMAGED: Final = Coded("export_damaged", "move it away; if it was its shard's last file, the next export makes it again")
EXPORT_FOREIGN: Final = Coded("export_foreign", "one of them is not of this export: move it away")
EXPORT_MISSING: Final = Coded("export_missing", "put the missing file back, or go on in another directory")
LET_IT_FINISH: Final = Coded("let_it_finish", "let it finish")
SEE_HISTORY: Final = Coded("see_history", "see docs/reference/history.md")
MOVE_AWAY: Final = Coded("move_away", "move it away")
EXPORT_ELSEWHERE: Final = Coded("export_elsewhere", "go on in another directory")
ANOTHER_DIRECTORY: Final = Coded("another_directory", "choose another directory")
LONGER_WINDOWS: Final = Coded("longer_windows", "use longer windows")

# ---- Spark

BATCH_DIFFERS: Final = Coded(
    "batch_differs",
    "if its checkpoint has lost its newest files, start a new query where this one has got to; if the rows are the "
    "same messages computed anew, set option onMismatch to 'skip'",
)
SAME_KEY_TYPE: Final = Coded(
    "same_key_type",
    "start the query with the keyType it had, until that batch is done; then stop it and change it",
)
CHOOSE_KEY_TYPE: Final = Coded(
    "choose_key_type",
    "choose the keyType of the queue's keys, or keyType=stored for keys of several types",
)
READ_BINARY: Final = Coded("read_binary", "read bodies as BINARY, and make text of those that are: CAST(body AS STRING)")
PREPARE_KEYS: Final = Coded("prepare_keys", "prepare sees keys in one column of one type: 'string', 'binary' or 'int'")
PREPARED_COLUMNS: Final = Coded("prepared_columns", 'say, prepared="amount bigint, name string"')
RENAME_COLUMN: Final = Coded("rename_column", "rename one of them")
KEYLESS_ROWS: Final = Coded("keyless_rows", "filter such rows out, or configure the queue with keyless='random'")
SAME_VERSION: Final = Coded(
    "same_version",
    "driver and executors must have the same version, and nothing else may listen at that address",
)
CERTIFICATE_HOST: Final = Coded(
    "certificate_host",
    "it must be for the host that executors connect to, and be signed by the authority that serve() was given",
)
RUN_TASK_AGAIN: Final = Coded("run_task_again", "run the task again, as Spark does unless it has done so too often")
INSTALL_JAVA: Final = Coded("install_java", "install Java 17 or newer, or set JAVA_HOME")
JAVA_VERSION: Final = Coded("java_version", "is it Java 17 or newer?")
EXECUTORS_NEED_SERVER: Final = Coded(
    "executors_need_server",
    "executors that do not have the driver's files need strictq.spark.serve",
)
OPTION_PATH: Final = Coded("option_path", '.option("path", "…") names the queue\'s directory')
LEAVE_KEY_TYPE_OUT: Final = Coded("leave_key_type_out", "leave keyType out")
DECLARE_NULLABLE: Final = Coded("declare_nullable", "declare it nullable, and filter what is read")
READ_BATCH: Final = Coded("read_batch", "read dead letters and the history with spark.read")
NAME_QUERY: Final = Coded("name_query", "name this query, and name it the same when it is started again: it goes on where it was")
WITH_KEY_STATE: Final = Coded("with_key_state", "make it with key_state=True")
ENCODE_JSON: Final = Coded("encode_json", "encode it, or use json.dumps")
GIVE_QUEUE: Final = Coded("give_queue", "with strictq.open(...) as queue:")
USE_WORKER: Final = Coded("use_worker", "use a strictq.Worker for it")
SERVER_OPTIONS_PATH: Final = Coded("server_options_path", "use .options(**server.options), which has the path, too")
SERVE_AGAIN: Final = Coded("serve_again", "call strictq.spark.serve, and use its new options")
SERVER_OPTIONS: Final = Coded("server_options", "use .options(**server.options)")
EXECUTORS_OR_AGAIN: Final = Coded(
    "executors_or_again",
    "executors that do not have the driver's files need strictq.spark.serve; if they have them, run the batch again",
)
MAKE_QUEUE: Final = Coded("make_queue", "make it with strictq.open(path)")
GIVE_ANNOUNCE: Final = Coded("give_announce", "give announce, too: the host that they connect to")
MAKE_TOKEN: Final = Coded("make_token", "secrets.token_urlsafe() makes one")
SEE_STDERR: Final = Coded("see_stderr", "see its stderr")
HOST_AND_PORT: Final = Coded("host_and_port", "host must be an address of this machine, and nothing else may listen at that port")
GIVE_PEM: Final = Coded(
    "give_pem",
    "PEM files are needed: a certificate, its private key without a password, and the authority that signed it",
)
APPEND_ONLY: Final = Coded("append_only", 'use .mode("append"), or .outputMode("append") for a stream; q.purge() empties a queue')
MAKE_QUEUE_IN_DRIVER: Final = Coded("make_queue_in_driver", "make it with strictq.open(path) in the driver program")
NAME_WRITE: Final = Coded(
    "name_write",
    "name this write, and name it the same when it is run again: its rows are then written once",
)
OWN_CHECKPOINT: Final = Coded(
    "own_checkpoint",
    "give the query the checkpoint that belongs to it, or a new one: it begins after the last acknowledged batch",
)
ALL_COLUMNS: Final = Coded("all_columns", "leave .schema(...) out for all columns, or name those that you need, with their types")
CAST_COLUMN: Final = Coded(
    "cast_column",
    "CAST it in the query; keys are STRING, BINARY or BIGINT, as the option keyType says, and bodies are BINARY, "
    "or STRING where all of them are UTF-8",
)
SAME_INTERPRETER: Final = Coded(
    "same_interpreter",
    'before the session starts: os.environ["PYSPARK_PYTHON"] = sys.executable, or an interpreter of the same version',
)
DID_YOU_MEAN: Final = Coded("did_you_mean", "did you mean {name}?")
OPTION_OF: Final = Coded("option_of", "it is an option of {uses}")
OPTION_CALLED: Final = Coded("option_called", "use the option {option}")
OPTION_BACKLOG: Final = Coded(
    "option_backlog",
    "a queue delivers what is unresolved, oldest first, and a restarted query goes on where it was; "
    "to skip a backlog, call q.purge()",
)
OPTION_AVAILABLE_NOW: Final = Coded(
    "option_available_now",
    "a read ends at what had arrived when it was planned; for a stream use .trigger(availableNow=True)",
)
OPTION_TRIGGER_INTERVAL: Final = Coded(
    "option_trigger_interval",
    "to let batches fill, use a longer .trigger(processingTime=...)",
)
OPTION_NO_LOSS: Final = Coded(
    "option_no_loss",
    "messages stay in the queue until they are acked, and a checkpoint that is older than keepBatches is always an error",
)
OPTION_KAFKA_CLIENT: Final = Coded(
    "option_kafka_client",
    "a queue is a directory, named by the option path; no client is configured",
)
OPTION_OLDEST_FIRST: Final = Coded("option_oldest_first", "the oldest ready message is always delivered first")
OPTION_TTL: Final = Coded("option_ttl", "messages expire by the queue's ttl_seconds; see q.configure()")
OPTION_ACKED_REMOVED: Final = Coded(
    "option_acked_removed", "acked messages are removed; QueueConfig(history=...) keeps a record of them"
)
OPTION_NO_FILES: Final = Coded("option_no_files", "a queue holds messages, not files; filter rows in the query")
OPTION_PARSE_BODIES: Final = Coded(
    "option_parse_bodies",
    "a body is bytes; parse it in the query, for example with from_json(CAST(body AS STRING), ...)",
)
FILTER_KEYS: Final = Coded("filter_keys", "leave the option keys out, and filter in the query")
LOCAL_PATH: Final = Coded(
    "local_path",
    "keep the queue on a local disk of the driver's host; executors elsewhere read it through strictq.spark.serve",
)
ON_DISK: Final = Coded("on_disk", "open it at a path; other processes can't see a queue in memory")
ONE_PATH: Final = Coded("one_path", "load one queue at a time, and union the DataFrames")
TEMPORARY_VIEW: Final = Coded("temporary_view", "use CREATE TEMPORARY VIEW name USING strictq OPTIONS (path '...')")
OPTIONS_ARE: Final = Coded("options_are", "the options are {options}")
COLUMNS_ARE: Final = Coded("columns_are", "the columns are {columns}")
SELECT_COLUMNS: Final = Coded("select_columns", "select only what is to be sent: {columns}, and the column of option orderBy")
RENAME_TO: Final = Coded("rename_to", 'name it with .withColumnRenamed(…, "{name}"); the columns are {columns}')
INSTALL_THERE: Final = Coded(
    "install_there",
    'before the session starts: os.environ["PYSPARK_PYTHON"] = sys.executable, or an interpreter of the same '
    'version, in which you ran: pip install "strictq[spark]"',
)

# ---- tests of programs

JUMP_WALL: Final = Coded("jump_wall", "jump_wall() sets the wall clock back")
AWAIT_DRAIN: Final = Coded("await_drain", "use `await drain_async(...)`")
RETRY_FAILURES: Final = Coded("retry_failures", "use failures='retry', and look at .failures")
USE_FAKE_CLOCK: Final = Coded("use_fake_clock", "open it with strictq.testing.open(), or strictq.open(..., clock=FakeClock())")
MACHINE_OPEN: Final = Coded("machine_open", "use machine.open()")


# ---- what `explain` and `stats` say; {rest} is what follows the sentence, or nothing

NEVER_SENT: Final = Coded("never_sent", "nothing was ever sent to this key")
EMPTY: Final = Coded("empty", "no message is waiting{rest}")
IN_HANDOUT: Final = Coded(
    "in_handout",
    "{what} in hand-out {n} of consumer {by}, until it is acked or q.release_consumer({by!r}) gives it back{rest}",
)
LEASED: Final = Coded("leased", "{what} held by {by} for another {left}{rest}")
LANE_HELD: Final = Coded("lane_held", "the lane is held ({by}): release it with q.release(key){rest}")
DELAYED: Final = Coded("delayed", "seq {seq} is due in {left} ({why}); the messages behind it wait{rest}")
READY: Final = Coded("ready", "seq {seq} is handed out at the next receive{rest}")
QUARANTINED: Final = Coded("quarantined", "{message} ({hint})")

ALL: Final = {each.code: each for each in list(globals().values()) if isinstance(each, Coded)}
"""Each of them, by its code."""
