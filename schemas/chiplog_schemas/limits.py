"""Every limit of chiplog, by name, with the reason for its number.

A limit that users may change has a setting of the same name in lower case. The constant is its default.
"""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# -- what one thing may be --------------------------------------------------------------------------------------------
NUMBER_LIMIT = (1 << 63) - 1  # of records; the number and its successor are stored in signed columns
RECORD_BYTES_MAX = 4 * MIB  # a damaged length must not make a reader allocate without limit
RESYNC_BYTES_MAX = 256 * MIB  # checksums of false headers in one scan: hostile bytes must not delay a reader
SEQ_END = 1 << 53  # no process has more events: a sum over a thousand labels is still an integer of 64 bits
EVENT_BYTES_MAX = 1 * MIB  # four events of the largest size still fit one record
KEY_BYTES_MAX = 512  # a metric name is for people; a longer one is a value in the wrong place
KEYS_MAX = 10_000  # names per run: more is a step number in the key
NAME_CHARS_MAX = 128  # label and run ID: they become columns, file names and terminal output
TEXT_CHARS_MAX = 65_536  # a short string; anything longer is a file
NESTING_MAX = 16  # nested dicts in one log() call: deeper is a cycle or a mistake

# -- files ------------------------------------------------------------------------------------------------------------
FILE_BYTES_MAX = 1 * GIB  # one saved file: save() takes as long as a copy of it
FILES_PER_SAVE_MAX = 10_000  # per save() of a directory or pattern; more is a data set
MEDIA_BYTES_MAX = 64 * MIB  # one image, table …, which is in memory while it is logged; a larger one is a file
MEDIA_PER_LOG_MAX = 100  # under one key in one call; more is a table
PARTS_PER_MEDIA_MAX = 1_000  # media in the cells of one table, masks of one image
TABLE_ROWS_MAX = 1_000_000  # of one logged table; more is a data set
TABLE_COLUMNS_MAX = 10_000  # of one logged table: as many as a run has metrics
ARTIFACT_WAIT_S = 30  # reading an artifact waits so long for the collector, then raises: a restart of one takes less
PATH_CHARS_MAX = 1_024  # a file's name in its run
OUTBOX_BYTES_MAX = 16 * GIB  # copies on a node that the collector has not stored yet
FILES_BYTES_MAX = 256 * GIB  # all runs at a collector, partially received files included
FREE_BYTES_MIN = 1 * GIB  # files leave this much of a disk free, or a twentieth of a small disk: events have priority
FILE_CHUNK_BYTES = 256 * KIB  # a DATA frame is four times as large, so a file never delays events
FILE_CREDIT_BYTES = 1 * MIB  # of one file, sent and not yet written
FILES_AT_ONCE = 8  # files that a collector receives at a time; memory for chunks is this times the credit
FILES_PER_KEY_AT_ONCE = 2  # of these, per key: an agent sends one while another may be closing
CONTENT_AGE_S = 86_400.0  # a content of deleted runs is removed when it is so old: another run may send it again
FILE_PARTS_MAX = 64  # partially received files that a collector keeps …
FILE_PART_IDLE_S = 86_400.0  # … for a day without a chunk
FILE_PAUSE_MAX_S = 60.0  # the longest pause before a refused file is offered again

LOG_FREE_BYTES_MIN = 256 * MIB  # below it, or 1 % of a small disk, a collector takes no events: deleting needs room
DISK_WARNING_PERCENT = 80  # of a collector's disk in use

# -- how long data is kept --------------------------------------------------------------------------------------------
HOT_DAYS = 7  # a collector with a store keeps published facts in its database for this long; 0: forever
RETENTION_DAYS = 0  # a collector deletes runs that ended earlier than this; 0: never
SYSTEM_SECONDS_DAYS = 7  # a collector keeps system samples as they came for this long, then their means over a minute …
SYSTEM_MINUTES_DAYS = 90  # … for this long, then those over an hour; 0: forever
SYSTEM_RETENTION_DAYS = 0  # a collector deletes system samples that are older; 0: never

# -- how much may wait ------------------------------------------------------------------------------------------------
JOURNAL_BYTES_MAX = 256 * MIB  # per producer; at 1 MB/s four minutes without an agent, at usual rates hours
JOURNAL_MEMORY_BYTES_MAX = 16 * MIB  # the same without a disk: memory belongs to the training
JOURNAL_RESERVE_BYTES = 256 * KIB  # kept free for lifecycle and loss events when the rest is full
SPOOL_BYTES_MAX = 8 * GIB  # per agent: a night without a collector at 200 KB/s
SEGMENT_BYTES = 64 * MIB  # of spool and log: what is trimmed at once
CREDIT_BYTES = 16 * MIB  # per sender: sent and not yet acknowledged
BATCH_BYTES_MAX = 1 * MIB  # one DATA frame: large enough to amortise, small enough to interleave senders
SESSIONS_MAX = 16_384  # ten thousand agents and a reserve; a peer can invent any number of them
SENDERS_MAX = 65_536  # senders whose next number is kept: their SENDERS record takes half of RECORD_BYTES_MAX

# -- how long things take ---------------------------------------------------------------------------------------------
SEND_INTERVAL_S = 0.08  # a rank's sender polls its journal this often; each poll wakes the training process …
SEND_INTERVAL_SLOW_S = 0.25  # … while no client asks the collector
SPOOL_SYNC_INTERVAL_S = 0.05  # the agent builds a block and syncs it this often …
SPOOL_SYNC_INTERVAL_SLOW_S = 0.2  # … while no client asks the collector …
SPOOL_SYNC_BYTES = 1 * MIB  # … or when the block reaches this size
INDEX_FLUSH_INTERVAL_S = 0.15  # one DuckDB transaction this often …
INDEX_FLUSH_INTERVAL_SLOW_S = 1.0  # … while no client asks: each costs the same CPU time, however few its rows …
INDEX_FLUSH_ROWS = 200_000  # … or when it reaches this many rows
HEARTBEAT_INTERVAL_S = 2.0  # how often an idle sender sends PING
PEER_SILENT_S = 10.0  # five heartbeats missed
BACKOFF_MIN_S = 0.05  # pause before the first retry
BACKOFF_MAX_S = 5.0  # the longest pause between two retries
FINISH_WAIT_S = 1.0  # finish() waits at most this long; the agent delivers the rest from the journal
LINGER_MS = 200  # a closing socket delays the exit of its process by at most this
ADOPT_INTERVAL_S = 0.5  # how often the agent scans for journals of dead ranks
IDLE_EXIT_S = 10.0  # an embedded daemon without work exits after this time
INDEX_LOCK_WAIT_S = 20.0  # for another index of the directory to end: it applies the log first
LEAVER_WAIT_S = 2.0  # a daemon that starts while another is stopping waits this long for the lock
SAMPLE_INTERVAL_S = 1.0  # system statistics
SAMPLE_INTERVAL_MIN_S = 0.1  # ten samples a second of every device: a database should not have to store more
# A device is stale after five intervals: with longer ones a run could end before it is detected.
SAMPLE_INTERVAL_MAX_S = 3600.0

# -- console and queries ----------------------------------------------------------------------------------------------
CONSOLE_LINES_PER_S = 1_000  # per label, sustained
CONSOLE_BURST_LINES = 10_000  # per label, at once
CONSOLE_LINE_CHARS_MAX = 8_192  # a longer line is cut and marked
QUERIED_FOR_S = 10.0  # after a query the intervals are short for this long: pages and people ask again within it
QUERY_TIMEOUT_S = 30.0  # then the query is interrupted, because others wait
QUERIES_AT_ONCE = 2  # more wait: sixteen at once made commits ten times slower
QUERIES_WAITING_MAX = 64  # a longer queue answers "busy"
COLD_GB = 10  # that one query may read of a store: a minute of one core
QUERY_CHARS_MAX = 1 * MIB  # a longer text is data: pass it as parameters
QUERY_MEMORY_BYTES = 1 * GIB  # of the index for all queries; more goes to disk
RESULT_SPILL_BYTES = 64 * MIB  # of one result that may be read in parts; a larger one goes to a file …
RESULTS_BYTES_MAX = 32 * GIB  # … and all such files of a collector together have at most this size …
RESULTS_KEPT_MAX = 64  # … and this number: each has a descriptor …
RESULT_IDLE_S = 600.0  # … until none of its parts was requested for this time
RESULT_PART_BYTES = 1 * MIB  # of such a result in one message: the index reads it while it answers pings
# How often daemons and live ranks check that their files exist, and how often they touch them. Cleaners of /tmp and
# /var/tmp remove files that were not used for 10 days (systemd-tmpfiles' default), some after 1 day.
FILES_LOOK_S = 1.0
FILES_TOUCH_S = 3600.0
