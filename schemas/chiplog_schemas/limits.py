"""Every bound of chiplog, by name, with the reason for its number.

A bound that users may change has a setting of the same name in lower case; the constant is its default.
"""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# -- what one thing may be --------------------------------------------------------------------------------------------
NUMBER_LIMIT = (1 << 63) - 1  # of records: a number, and the next one, become signed columns
RECORD_BYTES_MAX = 4 * MIB  # a damaged length must not make a reader allocate without bound
RESYNC_BYTES_MAX = 256 * MIB  # checksums of false headers in one scan: hostile bytes must not hold a reader up
EVENT_BYTES_MAX = 1 * MIB  # four events of the largest size still fit one record
KEY_BYTES_MAX = 512  # a metric name is for people; a longer one is a value in the wrong place
KEYS_MAX = 10_000  # names per run: more is a step number in the key
NAME_CHARS_MAX = 128  # label and run ID: they become columns, file names and terminal output
TEXT_CHARS_MAX = 65_536  # a short string; anything longer is a file
NESTING_MAX = 16  # nested dicts in one log() call: deeper is a cycle or a mistake

# -- files ------------------------------------------------------------------------------------------------------------
FILE_BYTES_MAX = 1 * GIB  # one saved file: save() takes as long as a copy of it
FILES_PER_SAVE_MAX = 10_000  # of one save() of a directory or pattern: more is a data set
PATH_CHARS_MAX = 1_024  # a file's name in its run
OUTBOX_BYTES_MAX = 16 * GIB  # copies on a node that the collector does not have yet
FILES_BYTES_MAX = 256 * GIB  # of all runs at a collector, half arrived ones included
FREE_BYTES_MIN = 1 * GIB  # files leave this much of a disk free, or a twentieth of a small one: events come first
FILE_CHUNK_BYTES = 256 * KIB  # a DATA frame is four times as large: events wait for no file
FILE_CREDIT_BYTES = 1 * MIB  # of one file, sent and not yet written
FILES_AT_ONCE = 8  # that a collector takes: memory for chunks is this times the credit
FILES_PER_KEY_AT_ONCE = 2  # of these, by one key: an agent sends one, while another may be closed
FILE_PARTS_MAX = 64  # half arrived files that a collector keeps …
FILE_PART_IDLE_S = 86_400.0  # … for a day without a chunk
FILE_PAUSE_MAX_S = 60.0  # the longest pause before a file that was refused is offered again

# -- how much may wait ------------------------------------------------------------------------------------------------
JOURNAL_BYTES_MAX = 256 * MIB  # per producer; at 1 MB/s four minutes without an agent, at usual rates hours
JOURNAL_MEMORY_BYTES_MAX = 16 * MIB  # the same without a disk: memory belongs to the training
JOURNAL_RESERVE_BYTES = 256 * KIB  # kept free for lifecycle and loss events when the rest is full
SPOOL_BYTES_MAX = 8 * GIB  # per agent: a night without a collector at 200 KB/s
SEGMENT_BYTES = 64 * MIB  # of spool and log: what is trimmed at once
CREDIT_BYTES = 16 * MIB  # per sender: sent and not yet acknowledged
BATCH_BYTES_MAX = 1 * MIB  # one DATA frame: large enough to amortise, small enough to interleave senders
SESSIONS_MAX = 16_384  # open at one receiver: ten thousand agents, with room; a peer can make up as many as it likes
SENDERS_MAX = 65_536  # whose next numbers are kept: a SENDERS record of them fills half of what a record may have

# -- how long things take ---------------------------------------------------------------------------------------------
SEND_INTERVAL_S = 0.08  # a rank's sender looks at its journal this often: each look costs the training a wake-up
SPOOL_SYNC_INTERVAL_S = 0.05  # the agent makes a block and syncs it this often …
SPOOL_SYNC_BYTES = 1 * MIB  # … or when it holds this much
INDEX_FLUSH_INTERVAL_S = 0.15  # one DuckDB transaction this often …
INDEX_FLUSH_ROWS = 200_000  # … or when it holds this many rows
HEARTBEAT_INTERVAL_S = 2.0  # an idle sender says that it is alive
PEER_SILENT_S = 10.0  # five heartbeats missed
BACKOFF_MIN_S = 0.05  # the first try again
BACKOFF_MAX_S = 5.0  # and the longest pause between two
FINISH_WAIT_S = 1.0  # finish() waits at most this long; the journal delivers later
LINGER_MS = 200  # a closing socket may hold its process this long
ADOPT_INTERVAL_S = 0.5  # the agent looks for dead ranks' journals this often
IDLE_EXIT_S = 10.0  # an embedded daemon with nothing to do leaves after this
LEAVER_WAIT_S = 2.0  # a daemon that is started while another is just leaving waits this long for its lock
SAMPLE_INTERVAL_S = 1.0  # system statistics

# -- console and queries ----------------------------------------------------------------------------------------------
CONSOLE_LINES_PER_S = 1_000  # per label, sustained
CONSOLE_BURST_LINES = 10_000  # per label, at once
CONSOLE_LINE_CHARS_MAX = 8_192  # a longer line is cut and marked
QUERY_TIMEOUT_S = 30.0  # then it is interrupted: others wait
QUERIES_AT_ONCE = 2  # more wait: sixteen at once made commits ten times slower
QUERIES_WAITING_MAX = 64  # a longer queue answers "busy"
QUERY_CHARS_MAX = 1 * MIB  # a longer text is data: pass it as parameters
QUERY_MEMORY_BYTES = 1 * GIB  # of the index for all queries; more goes to disk
# Files of daemons and live ranks: how often they look whether these are still there, and how often they touch them.
# Cleaners of /tmp and /var/tmp remove what was not used for 10 days (systemd-tmpfiles' default) or, seldom, for 1 day.
FILES_LOOK_S = 1.0
FILES_TOUCH_S = 3600.0
