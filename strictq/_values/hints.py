"""Every hint, and every sentence that the command line rewords: a text and a stable code.

An error's hint is one of these. Programs and `cli/_advice.py` identify it by its code. `of` fills in the placeholders.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final


class Coded(str):
    """A sentence for people, with a code for programs.

    Attributes:
        template: the sentence with its placeholders.
        code: stable: the name of the sentence here, in lower case.
        parameters: the values of the placeholders.
    """

    code: str
    template: str
    parameters: dict[str, Any]

    def __new__(cls, template: str, *, code: str = "", parameters: dict[str, Any] | None = None) -> Coded:
        new = super().__new__(cls, template if parameters is None else template.format(**parameters))
        new.code, new.template, new.parameters = code, template, parameters or {}
        return new

    def of(self, **parameters: Any) -> Coded:
        """Return the sentence with these values."""
        return Coded(self.template, code=self.code, parameters=parameters)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(Coded, self.template, code=self.code, parameters=self.parameters or None), ()


# ---- default hints of error classes

MESSAGE_TOO_LARGE: Final = Coded("raise max_body_bytes with q.configure(), or send a reference to the data")
REFERENCE_TO_DATA: Final = Coded("send a reference to the data")
QUEUE_NOT_FOUND: Final = Coded("check the path, or open it without create=False and read_only=True")
QUEUE_CLOSED: Final = Coded("open it again with strictq.open()")
READ_ONLY_QUEUE: Final = Coded("open it without read_only=True")
LEASE_LOST: Final = Coded(
    "discard the work on this message: it was settled by another process, or it is delivered again to the key's next consumer"
)
LEASE_OVER: Final = Coded(
    "discard the work on this message: it will be delivered again; use a longer lease_seconds, call d.extend() while "
    "processing, or use a Worker, which extends leases"
)
QUEUE_FULL: Final = Coded("wait for consumers to catch up, or raise max_depth with q.configure()")
CONSUMER_BUSY: Final = Coded("stop the other holder, such as a running query, or use another consumer name")
CONSUMER_NAME_TAKEN: Final = Coded("use another name, or none: then it has the host and the process id")
PASS_PROCESS_SECONDS: Final = Coded("pass process_seconds=, the mean duration of a message")
TENANT_FULL: Final = Coded("wait for consumers to catch up, or raise the tenant's max_depth with q.limit()")
KEY_FULL: Final = Coded("wait for consumers to catch up, or raise max_key_depth with q.configure()")
SET_SEPARATOR: Final = Coded("set it first: q.configure(tenant_separator='/')")
THROTTLED: Final = Coded("send again after retry_after seconds, or raise the limit with q.limit()")
CONSUMER_LOST: Final = Coded("start again, unless the other holder is the one that should continue")
RECORDED_BATCH_GONE: Final = Coded("start with a new checkpoint, which begins after the last acked batch")
SERVER_UNREACHABLE: Final = Coded(
    "check that the program that called strictq.spark.serve is running, and that executors can reach its address"
)
SERVER_REFUSED: Final = Coded("if the server was restarted, restart the query; or pass the previous token to strictq.spark.serve")
PARTIAL_FAILURE: Final = Coded("look at .results, and retry the items whose entry is a transient error")
FORWARD_PENDING: Final = Coded("do not repeat the transaction: it is committed, and its sends will arrive")
FORKED_PROCESS: Final = Coded("open the queue again in the child process")
FORKED_MEMORY: Final = Coded("use a queue in a directory, or open one in memory in each process")
STORE_BUSY: Final = Coded("try again later: another process holds the shard's write lock")
STORE_FULL: Final = Coded("free disk space, or let consumers drain the queue; sends then work again")
STORE_CORRUPT: Final = Coded("restore the file from a backup, or salvage the queue with strictq.salvage(path, out)")
SCHEMA_MISMATCH: Final = Coded("upgrade strictq in this Python environment")
OUTCOME_UNKNOWN: Final = Coded(
    "repeat the call: a repeated ack is safe under the same token, a repeated send under the same dedup_id"
)
NOT_CONFIRMED: Final = Coded(
    "check the replica and the network; then repeat the call: a repeated ack is safe under the same token, a repeated send "
    "under the same dedup_id"
)
TARGET_UNAVAILABLE: Final = Coded(
    "check that the directory exists, is mounted and is writable, or that the store is reachable; shipping then resumes"
)
REPLICA_GAP: Final = Coded("restore an earlier state; list them with `strictq replicas TARGET --points`")
DIVERGED: Final = Coded(
    "decide which of the two histories to keep, and replicate it to a different, empty directory; a copied directory becomes a "
    "queue of its own by `strictq adopt QUEUE`"
)
FENCED: Final = Coded(
    "stop writing to this queue: its replica has taken its place. Keep this directory: it may have messages to merge. "
    "Replicate the promoted queue to a new replica"
)
PRIMARY_ALIVE: Final = Coded(
    "stop the processes of the primary, wait ten seconds and try again; or use force=True if no client can reach it"
)

# ---- replication

OTHER_DIRECTORY: Final = Coded("use an empty or new directory, on another disk")
TARGET_IS: Final = Coded(
    "use a directory, as a path or 'file:/mnt/backup/orders', an object store: 's3://bucket/orders', or a replica on another "
    "host: 'tcps://host:7400'"
)
STORE_CREDENTIALS: Final = Coded(
    "configure AWS credentials that may list, read, write and delete there: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
)
KEY_FILE: Final = Coded("create one with: head -c 32 /dev/urandom | base64 > FILE; do not store it on the target")
TOKEN_FILE: Final = Coded(
    "create one with: head -c 32 /dev/urandom | base64 > FILE; the primary and its replica use the same token"
)
SERVE_TOKEN: Final = Coded(
    "give --token-file FILE, or listen at 127.0.0.1; --insecure serves every program that reaches the address"
)
SERVE_KEYS: Final = Coded(
    "give --keys-file FILE, or listen at 127.0.0.1; --insecure serves every program that reaches the address"
)
USE_TLS: Final = Coded("use a certificate for the replica and tcps:// for its primary; or plaintext in a private network")
CERTIFICATE_OF_REPLICA: Final = Coded(
    "use authority=FILE with the authority of the replica's certificate, which must name its host"
)
PROMOTE: Final = Coded("write to its primary, or, if that is lost, run `strictq promote {path}`; read_only=True opens it")
REPLICA_RUNS: Final = Coded("check that `strictq replica` runs there and that its port can be reached; shipping then resumes")
SAME_RELEASE: Final = Coded("check which program listens there, and that both hosts have the same version of strictq")
START_REPLICA: Final = Coded("start it: `strictq replica {path} --listen HOST:PORT --token-file FILE`")
PROMOTE_AGAIN: Final = Coded("if no process is promoting it, run `strictq promote {path}` again")
GIVE_REPLICA: Final = Coded("use the directory that was passed to `strictq replica`")
END_REPLICA: Final = Coded("end the `strictq replica` process, which may be suspended or hang, and try again")
REPLICA_IS: Final = Coded("use tcps://HOST:PORT, or tcp://HOST:PORT in a private network")
FINISH_ELECTION: Final = Coded(
    "finish the promotion: run `strictq promote` again on the host where it began, or on another member"
)
MAJORITY: Final = Coded("start the members that do not answer; if they are lost for good, `strictq promote PATH --force`")
NO_MEMBER: Final = Coded(
    "promote a member: `strictq members PATH` on its host shows them; to use this host again, start an empty replica"
)
PROMOTE_OTHER: Final = Coded("promote that member instead: it has segments that this one lacks")
ELECTED_OTHER: Final = Coded("use the queue of the member that was elected; this replica can follow it")
DECIDER: Final = Coded("the decider must exit with 0 only for the host that may become primary in this term")
FORM_CHAIN: Final = Coded("form it on the primary's host: `strictq members QUEUE --form TARGET --form TARGET`")
SHOW_MEMBERS: Final = Coded("show the members: `strictq members PATH`")
FORWARD_OR_DROP: Final = Coded(
    "start it with --forward-to, or drop that member on the primary's host: `strictq members QUEUE --drop TARGET`"
)
FEED_FIRST: Final = Coded(
    "let the queue ship to it first, or the replica before it with --forward-to, until it has a first segment"
)
CLOSE_LOOKS: Final = Coded("close all programs that have it open with read_only=True")
NOT_TO_RESTORE: Final = Coded(
    "promote the replica on its host: `strictq promote PATH`; restore needs a directory or an object store"
)
KEY_OF_REPLICA: Final = Coded(
    "use the key file that the replica was configured with, or replicate with another key to an empty target"
)
EMPTY_TARGET: Final = Coded("use an empty or new directory, or this queue's own target")
PUT_IN_SERVICE: Final = Coded(
    "when the original is out of service, put this one in service: `strictq replicate {path} --to TARGET`, or --alone for no "
    "replica; if the original stays in service, make this one a queue of its own: `strictq adopt {path}`; "
    "until then, open it with read_only=True"
)
PLAIN_NAMES: Final = Coded("use letters, digits and underscores; a table's name may have its schema before a dot")
GIVE_PARAMSTYLE: Final = Coded("pass paramstyle, which the documentation of the database's module names")
MEND_ROW: Final = Coded("correct or delete the row in the database, and relay again")
BACK_UP_PRIMARY: Final = Coded("back up its primary")
POINTS_ARE: Final = Coded("list the states that can be restored: `strictq replicas {target} --points`")
BASE_FOLLOWS: Final = Coded("the next round ships the whole queue; find out what deletes or changes files there")
CUT_BEFORE: Final = Coded("the newest state before it is from {at}: restore it with cut={cut}")
CHOOSE_CUT: Final = Coded("choose one by its number: cut={cut}")
CONFIRMING_TARGET: Final = Coded(
    "check the replica and the network; acks are still committed here, and writes resume when it answers"
)
CONFIRMS_NOT: Final = Coded(
    "use a store that honours conditional writes, a directory or a replica on another host; or mode='async'"
)
UNFENCE: Final = Coded(
    "stop writing to this queue: its replica has taken its place; or use force=True, and both queues deliver the same messages"
)
LEAVE_CONFIRMED: Final = Coded(
    "start the replica, so that it learns of this; or use force=True: a promotion of that replica may then lose messages"
)
CONFIGURE_AGAIN: Final = Coded("call q.configure_replication() again, with this or another target")
MERGE_FORK: Final = Coded(
    "merge the directory of the old primary, or of the original of a restore, into the queue that took its place"
)
REJOIN: Final = Coded(
    "if its replica was promoted, use rejoin=True: the directory is moved to `{path}.diverged-TERM` and not deleted"
)
AGAIN_FROM_NEWER: Final = Coded("run it again; it will start from a newer base")

# ---- queues, messages and deliveries

CONSUMER_BUSY_FORCE: Final = Coded("stop the holder first, or use force=True to fence it")
INSTALL_PYSPARK: Final = Coded('install 4.2 or newer: pip install "strictq[spark]"')
HANDLER_SHAPE: Final = Coded("define it with def or async def, without yield; await or iterate inside the handler")
LET_KEYLESS: Final = Coded("or allow keyless messages: q.configure(keyless='random')")
SETTLED_ALREADY: Final = Coded("settle a delivery only once")
KEY_AND_SEQ: Final = Coded("pass key and seq, or the receipt that send returned")
RAISE_INSTEAD: Final = Coded("raise Retry, Defer, Reject or any exception")
USE_JOB_EXECUTE: Final = Coded("use job.execute(), which runs with the ack")
ALL_GROUPS: Final = Coded("pass process, which gets one message of any group at a time")
EFFECTS_ARE_LOCAL: Final = Coded("make effects idempotent by (queue, group, sequence number); see docs/howto/remote-workers.md")
BATCH_OR_SINGLE: Final = Coded("pass either process, which gets one job, or process_batch, which gets a list of jobs")
TYPES_ARE: Final = Coded("handlers exist for these types: {types}")
AFTER_COMMIT: Final = Coded("read it after the transaction's with block has committed")
OTHER_QUEUE_OBJECT: Final = Coded("settle it through the queue object that received it")
GIVE_REASON: Final = Coded("pass a reason; it is stored with the dead letter")
ENCODE_BODY: Final = Coded("encode it, or use send_json() or Message.json()")
CONVERT_KEY: Final = Coded("convert it, for example with str(key)")
TOTAL_SECONDS: Final = Coded("pass its total_seconds()")
MAKE_CONFIG: Final = Coded("pass strictq.QueueConfig(...), with the settings as named arguments")
INSIDE_MESSAGE: Final = Coded("pass the key and the options to the Message")
CRON_FIELDS: Final = Coded("use five fields: minute, hour, day of month, month, day of week; '30 3 * * MON-FRI' or '*/5 * * * *'")
ZONE_NAMES: Final = Coded("use an IANA name, such as 'Europe/Berlin' or 'UTC'; the package tzdata provides them")
NAME_OF_SCHEDULE: Final = Coded("give each schedule of a handler its own name: name='...'")
NAME_SCHEDULE: Final = Coded("rename the schedule, and do not use its key for other messages")
AWARE_DATETIME: Final = Coded(
    "pass a datetime with a time zone, such as datetime(2030, 1, 31, 8, tzinfo=ZoneInfo('Europe/Berlin')) or datetime.now(UTC)"
)
USE_ASYNC_WITH: Final = Coded("use it inside `async with strictq.open_async(...)`")
USE_ACK: Final = Coded("use ack()")
GIVE_DELIVERY: Final = Coded("pass what receive() or consume() returned; transaction() also takes key=... or deliveries=[...]")
GIVE_HANDLE: Final = Coded("pass the str that d.handle returned")
OPEN_ITS_QUEUE: Final = Coded("open the queue that delivered the message")
NAMES_IN_UTF8: Final = Coded("choose another directory, or rename the files in it to UTF-8 names")
ONE_KEY: Final = Coded("use one transaction per key")
TRANSACTION_OF_KEY: Final = Coded("use transaction(key=...)")
SETTLE_EARLIER: Final = Coded("settle the earlier messages of the key first")
INSTALL_EXTRA: Final = Coded('pip install "strictq[{extra}]"')
HANDLER_YIELDS: Final = Coded("make {what} a def or async def function without yield, which returns when its work is done")

SEND_PATH: Final = Coded("pass q.path to the other process, and open the queue there with strictq.open()")
SHARE_HANDLE: Final = Coded("pass d.handle, a str, and use q.delivery(handle) there")
JSON_BODY: Final = Coded(
    "send it with q.send_json(), or read d.body; raise Reject to dead-letter a message that cannot be parsed"
)
SETTINGS_ARE: Final = Coded("the settings are {settings}")
NOT_A_URL: Final = Coded("a queue is a directory; pass its path, such as {path!r}")
CHANGE_DIRECTORY: Final = Coded("use an absolute path, or change to a directory that exists")
NO_HOME: Final = Coded("write the full path; for a directory whose name starts with ~, write './~…'")

# ---- the store

CONFIGURE_KEYLESS: Final = Coded("or configure the queue with keyless='random'")
CHECKPOINT_TOO_OLD: Final = Coded(
    "the queue no longer keeps the batches of this checkpoint; start a new query from where this one stopped"
)
RUN_BATCH_AGAIN: Final = Coded("run the batch again")
LEAVE_SHARDS_OUT: Final = Coded("omit shards to open the queue with the number that it has")
ONE_SHARD_OR_KEY: Final = Coded("create the queue with shards=1, or keep dedup_scope='key' and make ids unique per key")
READ_BOTH: Final = Coded("read what the old queue still has, and send it to the other one by a program of your own")
ONE_MOVE: Final = Coded("wait until it has ended, or cancel it with q.cancel_move()")
END_BATCHES: Final = Coded("acknowledge or release the consumer's batch; the move is continued then")
FINISH_BATCH: Final = Coded("run the writer's query again, which completes the batch, and then move the range")
REPAIR_SHARD: Final = Coded("repair or salvage the shard first")
SEE_TOPOLOGY: Final = Coded("see what each shard owns with q.topology()")
NAME_KEY_COLUMNS: Final = Coded(
    "name the column that has the keys of its rows with q.app_schema(sql, key_columns={...}), or empty the table"
)
PASS_SHARD: Final = Coded("pass shard=record.shard and after=record.n of the last record")
SALVAGE_PARCEL: Final = Coded("salvage the queue with strictq.salvage(path, out), which keeps what left with the parcel")
LONG_PAUSE: Final = Coded("accept that with long_pause=True, or consume some of the messages first")
CLEAR_ROWS: Final = Coded("write a row only in a transaction of its own key; delete the rows that are in the way")
LEAVE_SETTINGS_OUT: Final = Coded("omit these settings, or change the stored ones with q.configure()")
LEAVE_DURABILITY_OUT: Final = Coded("omit durability to open the queue at its own level")
OPEN_READ_ONLY: Final = Coded("open the queue with read_only=True")
LOOK_READ_ONLY: Final = Coded("to read only, use read_only=True")
ONLY_APP_TABLES: Final = Coded("name your tables app_…, and do not use BEGIN, COMMIT, ATTACH or PRAGMA")
ONLY_READS: Final = Coded("use SELECT on app_* tables; write with tx.execute() in a q.transaction()")
ONLY_ROWS: Final = Coded(
    "read and write rows of app_* tables; create or change a table with q.app_schema(); do not use BEGIN, COMMIT or PRAGMA"
)
VALUE_TOO_LARGE: Final = Coded("split the value, or raise max_body_bytes")
SQL_TOO_LONG: Final = Coded("add an index, or split the statement")
USE_TX_METHODS: Final = Coded("use tx.send, tx.execute or tx.key_state, or make this call before or after the with block")
INSTALL_APSW: Final = Coded("install apsw>=3.51.3.0, but not 3.52.0.0")
CHECK_ARGUMENTS: Final = Coded(
    "integers must fit in 64 bits and text must be valid UTF-8; if all arguments are valid, look for damage with q.check()"
)
FORK_OUTSIDE: Final = Coded("repeat it, and fork outside of it")
OPEN_AGAIN: Final = Coded("open the queue again")
USE_TRANSACTION: Final = Coded("inside the block, use the transaction's own methods")
UNPACK_APSW: Final = Coded("install apsw from its wheel, unpacked on a file system")
APSW_WHEEL: Final = Coded("install apsw from its wheel")
ONE_KERNEL: Final = Coded("close the queue on the other machine first; only one kernel may use it at a time")
NO_DESCRIPTORS: Final = Coded("close files or queues, or raise the limit on open files: ulimit -n")
NOT_A_DIRECTORY: Final = Coded("a queue is a directory; choose another path")
NOT_A_QUEUE: Final = Coded("check the path; a new queue needs a path that does not exist")
SALVAGE_OLDER: Final = Coded("salvage it with the version of strictq that wrote it, and migrate what was saved")
SALVAGE_RUNS: Final = Coded("try again when the salvage has finished")
OPEN_FOR_REPAIR: Final = Coded("open the queue once for writing; this repairs it")
LEASED_REJECT: Final = Coded("use force=True to end the lease, or reject it from its holder")
MIGRATE: Final = Coded(
    "close the queue in every process, then migrate it: strictq.open(path, migrate=True) or strictq.migrate(path)"
)
NEW_PATH: Final = Coded("choose a path that does not exist yet")
CLOSE_EVERYWHERE: Final = Coded("close the queue in every process, and try again")
OPEN_WRITABLE: Final = Coded("open it from a place where the directory is writable")
UNLINK: Final = Coded(
    "close the queue, and replace the linked file by a copy: cp -p FILE FILE.new && mv FILE.new FILE; copy a queue "
    "with cp -a, not with ln, cp -al or rsync --link-dest"
)
REMOVE_OR_RESTORE: Final = Coded("remove {path}, or restore it from a backup")
CHMOD: Final = Coded("chmod 700 {path}")

# ---- the worker

STOP_WORKER: Final = Coded("stop the worker, and close the queue after run() or serve() has returned")
USE_THREADS: Final = Coded("use executor='thread'")
MORE_THREADS: Final = Coded("raise the limit of threads (pids.max, TasksMax, ulimit -u), or lower concurrency")
GUARD_MAIN: Final = Coded("put the program's code under `if __name__ == '__main__':`")
USE_EXECUTE: Final = Coded("use job.execute, or executor='thread'")
DEFINE_AT_TOP: Final = Coded("define it at the top level of a module")
AWAIT_SERVE: Final = Coded("use `await worker.serve()`")
ANOTHER_WORKER: Final = Coded("create another Worker")

# ---- exports and pictures of the history

EXPORT_BESIDE: Final = Coded("export to a directory beside it")
EXPORT_ALONE: Final = Coded("use a separate directory for the export")
EXPORT_EACH: Final = Coded("use a separate directory for each queue")
EXPORT_NAME: Final = Coded("restore the file's original name")
ANOTHER_PATH: Final = Coded("choose another path")
EXPORT_DAMAGED: Final = Coded("move it away; if it was its shard's last file, the next export writes it again")
EXPORT_FOREIGN: Final = Coded("one of them does not belong to this export: move it away")
EXPORT_MISSING: Final = Coded("restore the missing file, or export to another directory")
LET_IT_FINISH: Final = Coded("wait until it has finished")
MOVE_AWAY: Final = Coded("move it away")
EXPORT_ELSEWHERE: Final = Coded("export to another directory")
ANOTHER_DIRECTORY: Final = Coded("choose another directory")
LONGER_WINDOWS: Final = Coded("use longer windows")

# ---- Spark

BATCH_DIFFERS: Final = Coded(
    "if the checkpoint lost its newest files, start a new query from where this one stopped; if the rows are the "
    "same messages recomputed, set the option onMismatch to 'skip'"
)
BATCH_LOST: Final = Coded(
    "set the option onMismatch to 'skip' to leave the batch as it is, and send the rows that it lacks by a program of your own"
)
OWN_JOB: Final = Coded(
    "leave the option jobId out, because the query and its batch name the write; or use a job id that no other query or job has "
    "used; if the rows of this batch are in the queue, skip this write"
)
TWO_WRITES: Final = Coded(
    "give each write of a batch a job id of its own that ends with the batch's number, such as good-7 and bad-7"
)
CONSUMER_IN_QUERY: Final = Coded(
    "stop the other query, or use another consumer name; a query that reads its stream twice, as a self-join or a union does, "
    "must do that in foreachBatch, where the batch can be used several times"
)
EXECUTORS_AS_OWNER: Final = Coded(
    "run executors as the owner of the queue's directory, or let them read through strictq.spark.serve"
)
CLASSIC_SESSION: Final = Coded(
    "run it in the driver program, with a session of SparkSession.builder.master(...); or read the queue as a stream, or use a "
    "Worker"
)
SAME_KEY_TYPE: Final = Coded(
    "restart the query with the previous keyType until that batch is done; then stop it and change keyType"
)
CHOOSE_KEY_TYPE: Final = Coded("set keyType to the type of the queue's keys, or to stored for keys of several types")
READ_BINARY: Final = Coded("read bodies as BINARY, and convert text bodies with CAST(body AS STRING)")
PREPARE_KEYS: Final = Coded("prepare gets keys in one column of one type: 'string', 'binary' or 'int'")
PREPARED_COLUMNS: Final = Coded('for example prepared="amount bigint, name string"')
RENAME_COLUMN: Final = Coded("rename one of them")
KEYLESS_ROWS: Final = Coded("filter out rows without a key, or configure the queue with keyless='random'")
SAME_VERSION: Final = Coded(
    "use the same strictq version on the driver and executors, and check that no other program listens at that address"
)
CERTIFICATE_HOST: Final = Coded(
    "the certificate must name the host that executors connect to, and be signed by the authority passed to serve()"
)
RUN_TASK_AGAIN: Final = Coded("run the task again; Spark does this unless its limit of attempts is reached")
EXECUTORS_NEED_SERVER: Final = Coded("executors without access to the driver's files need strictq.spark.serve")
OPTION_PATH: Final = Coded('.option("path", "…") names the queue\'s directory')
LEAVE_KEY_TYPE_OUT: Final = Coded("leave keyType out")
DECLARE_NULLABLE: Final = Coded("declare the column nullable, and filter the rows")
READ_BATCH: Final = Coded("read dead letters and the history with spark.read")
NAME_QUERY: Final = Coded("name this query, and use the same name when restarting it, so that it continues")
WITH_KEY_STATE: Final = Coded("create it with key_state=True")
GIVE_SESSION: Final = Coded("pass a session: SparkSession.builder.getOrCreate()")
GIVE_FRAME: Final = Coded("pass what spark.read or spark.readStream returned by load()")
GIVE_QUEUE: Final = Coded("with strictq.open(...) as queue:")
USE_WORKER: Final = Coded("use a strictq.Worker for it")
SERVER_OPTIONS_PATH: Final = Coded("use .options(**server.options), which includes the path")
SERVE_AGAIN: Final = Coded("call strictq.spark.serve, and use its new options")
SERVER_OPTIONS: Final = Coded("use .options(**server.options)")
EXECUTORS_OR_AGAIN: Final = Coded(
    "executors without access to the driver's files need strictq.spark.serve; otherwise run the batch again"
)
MAKE_QUEUE: Final = Coded("create it with strictq.open(path)")
GIVE_ANNOUNCE: Final = Coded("pass announce as well, the host that executors connect to")
MAKE_TOKEN: Final = Coded("create one with secrets.token_urlsafe()")
SEE_STDERR: Final = Coded("see its stderr")
HOST_AND_PORT: Final = Coded("host must be an address of this machine, and the port must be free")
GIVE_PEM: Final = Coded("pass PEM files: a certificate, its private key without a password, and the authority that signed it")
APPEND_ONLY: Final = Coded('use .mode("append"), or .outputMode("append") for a stream; q.purge() empties a queue')
MAKE_QUEUE_IN_DRIVER: Final = Coded("create it with strictq.open(path) in the driver program")
NAME_WRITE: Final = Coded(
    "name this write, and use the same name when repeating it, so that its rows are written once; in foreachBatch this is needed "
    "only on Spark Connect, and in threads that the program starts"
)
OWN_CHECKPOINT: Final = Coded("use the query's own checkpoint, or a new one, which begins after the last acked batch")
NEW_CHECKPOINT: Final = Coded("start the query with a new checkpoint; it begins after the last batch whose ack the copy has")
ALL_COLUMNS: Final = Coded("omit .schema(...) for all columns, or name the columns that you need, with their types")
CAST_COLUMN: Final = Coded(
    "CAST it in the query; keys are STRING, BINARY or BIGINT, depending on the option keyType, and bodies are BINARY, "
    "or STRING where all of them are UTF-8"
)
SAME_INTERPRETER: Final = Coded(
    'set, before the session starts, os.environ["PYSPARK_PYTHON"] = sys.executable, or an interpreter of the same version'
)
DID_YOU_MEAN: Final = Coded("did you mean {name}?")
OPTION_OF: Final = Coded("it is an option of {uses}")
OPTION_CALLED: Final = Coded("use the option {option}")
OPTION_BACKLOG: Final = Coded(
    "a queue delivers its unresolved messages, oldest first, and a restarted query continues where it stopped; "
    "to skip a backlog, call q.purge()"
)
OPTION_AVAILABLE_NOW: Final = Coded(
    "a read ends at the messages that had arrived when it was planned; for a stream use .trigger(availableNow=True)"
)
OPTION_TRIGGER_INTERVAL: Final = Coded("to let batches fill, use a longer .trigger(processingTime=...)")
OPTION_NO_LOSS: Final = Coded(
    "messages stay in the queue until they are acked, and a checkpoint that is older than keepBatches is always an error"
)
OPTION_KAFKA_CLIENT: Final = Coded("a queue is a directory, named by the option path; no client is configured")
FILTER_KEYS: Final = Coded("leave the option keys out, and filter in the query")
LOCAL_PATH: Final = Coded(
    "keep the queue on a local disk of the driver's host; executors elsewhere read it through strictq.spark.serve"
)
ON_DISK: Final = Coded("open it at a path; other processes cannot see a queue in memory")
ONE_PATH: Final = Coded("lists and patterns of paths are for spark.read and spark.readStream without a server")
PATH_OR_PATHS: Final = Coded("use path for one queue or a pattern, and paths for a list")
PATHS_LIST: Final = Coded('write .option("paths", json.dumps([...]))')
PATHS_PATTERN: Final = Coded("use a pattern, such as fleet/*/")
NO_MATCH: Final = Coded("check the pattern; a directory is a queue if it has the file queue.db")
QUEUE_BACK: Final = Coded(
    "bring it back and start the query again; or, if it is lost, start with a new checkpoint, which begins after the last acked "
    "batch of each queue"
)
FAIL_ON_MISSING: Final = Coded('read the others with .option("failOnMissing", "false")')
ONE_QUEUE_OPTION: Final = Coded("it is for a list or a pattern of paths")
FLEET_CHECKPOINT: Final = Coded("load the same list or pattern of paths, or start with a new checkpoint")
ONE_COPY: Final = Coded("move the copy out of the pattern; a copied directory is not another queue")
BODY_COLUMN: Final = Coded("choose a name that no other column has")
LEAVE_COLUMN_OUT: Final = Coded("name the columns to insert: INSERT INTO name (key, body) ...")
INSERT_JOB: Final = Coded(
    "in SQL, INSERT INTO name WITH ('jobId' = '...'); repeat it with the same job id, and its rows are written once"
)
OPTIONS_ARE: Final = Coded("the options are {options}")
COLUMNS_ARE: Final = Coded("the columns are {columns}")
SELECT_COLUMNS: Final = Coded("select only the columns to send: {columns}, and the column of the option orderBy")
RENAME_TO: Final = Coded('name it with .withColumnRenamed(…, "{name}"); the columns are {columns}')
INSTALL_THERE: Final = Coded(
    'set, before the session starts, os.environ["PYSPARK_PYTHON"] = sys.executable, or an interpreter of the same '
    'version, in which strictq and its extra "spark" are installed'
)

# ---- the SQS endpoint

ONE_SQS_SERVER: Final = Coded("stop the other server, or send requests to it")
SQS_DIRECTORY: Final = Coded("give a directory that is not a queue itself: strictq serve sqs /var/lib/sqs")
SQS_ENTRY: Final = Coded("restore the file from a backup; or remove it, and create the queue again")

# ---- queues behind an endpoint

QUEUE_URL: Final = Coded(
    "write https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, or sqs+http://HOST:PORT/queue/NAME for another endpoint"
)
OPEN_DIRECTORY: Final = Coded("open a directory with strictq.open(); connect() takes the URL of a queue")
CONNECT_URL: Final = Coded("connect to a queue behind an SQS endpoint with strictq.connect()")
CREDENTIALS_CHAIN: Final = Coded("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of boto3's credentials")
CREDENTIALS: Final = Coded(
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of boto3's credentials; `strictq serve sqs` without "
    "--keys-file accepts any"
)
REMOTE_QUEUE: Final = Coded("check the name, the region and the account, or create the queue")
REMOTE_PERMISSION: Final = Coded("allow {permission} for these credentials, or use others")
REMOTE_ENDPOINT: Final = Coded("check the URL, and that the endpoint runs and can be reached from here")
CONNECT_AGAIN: Final = Coded("connect to it again, in each process, with strictq.connect()")
PASS_LEASE_SECONDS: Final = Coded("pass lease_seconds=, or raise the queue's visibility timeout")
LOCAL_BEFORE_REMOTE: Final = Coded("use a local queue for it, whose messages a forwarder sends to the endpoint")

# ---- tests of programs

JUMP_WALL: Final = Coded("use jump_wall() to set the wall clock back")
AWAIT_DRAIN: Final = Coded("use `await drain_async(...)`")
RETRY_FAILURES: Final = Coded("use failures='retry', and look at .failures")
USE_FAKE_CLOCK: Final = Coded("open it with strictq.testing.open(), or strictq.open(..., clock=FakeClock())")
MACHINE_OPEN: Final = Coded("use machine.open()")


# ---- sentences of `explain` and `stats`; {rest} is the continuation, or empty

NEVER_SENT: Final = Coded("nothing was ever sent to this key")
EMPTY: Final = Coded("no message is waiting{rest}")
IN_RECORDED_BATCH: Final = Coded(
    "{what} in batch {n} of consumer {by}, until the batch is acked or released with q.release_consumer({by!r}){rest}"
)
LEASED: Final = Coded("{what} held by {by} for another {left}{rest}")
LANE_HELD: Final = Coded("the key is held ({by}); release it with q.release(key){rest}")
DELAYED: Final = Coded("seq {seq} is due in {left} ({why}); later messages of the key wait{rest}")
READY: Final = Coded("seq {seq} can be received now{rest}")
IS_SIDELINED: Final = "it is sidelined, so newer messages get nine turns in ten"
SIDELINED: Final = Coded(f"seq {{seq}} can be received now; {IS_SIDELINED}{{rest}}")
TENANT_PAUSED: Final = Coded("seq {seq} waits because {why}; q.limit('{tenant}', paused=False) ends that")
TENANT_BUSY: Final = Coded("seq {seq} waits because {why}")
TENANT_THROTTLED: Final = Coded("seq {seq} waits because {why}; the next one in {left}")
IS_PAUSED: Final = "the queue is paused"
PAUSED: Final = Coded(f"seq {{seq}} waits because {IS_PAUSED}; q.resume() ends that{{rest}}")
QUARANTINED: Final = Coded("{message} ({hint})")

ALL: Final = {name.lower(): each for name, each in globals().items() if isinstance(each, Coded)}
"""Every sentence, by its code."""
for _code in ALL:
    ALL[_code].code = _code
