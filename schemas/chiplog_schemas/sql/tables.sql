-- The tables behind the views. Users never see them. A change of them needs a higher MIGRATION.
-- Facts carry integers and dimensions carry names, so that an identity that becomes known later changes one row.
-- Facts have no primary key: base.intervals keeps exactly-once.
-- `flush` is the number of the last log record of the flush that wrote a row. The tables of a store are cut by it.
CREATE SCHEMA base;

-- One row: the log that this database indexes, how far it has been applied, and the last numbers given out.
CREATE TABLE base.position (
    migration INTEGER, log_id BLOB, next_number BIGINT, last_run INTEGER, last_producer INTEGER
);

-- The first flush of each day of receipt, UTC, and the last record before it. A flush ends with its day, so that `after`
-- is the same in every database of a log.
CREATE TABLE base.receipt_days (day DATE, flush BIGINT, after BIGINT);

CREATE TABLE base.runs (
    run INTEGER, run_id VARCHAR, project VARCHAR, name VARCHAR, run_group VARCHAR, job_type VARCHAR,
    tags VARCHAR[], notes VARCHAR, primary_label VARCHAR, primary_launch VARCHAR, primary_restart BIGINT,
    alias_of INTEGER, -- the run that this is another name of
    told VARCHAR[], -- the label checks already reported in `events`
    alias_nodes VARCHAR[], -- nodes of the key that made it another name; empty: of all
    edited VARCHAR[], -- columns that a person has set
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.producers (
    producer INTEGER, uuid BLOB, role VARCHAR, run INTEGER, label VARCHAR, attempt INTEGER, is_primary BOOLEAN,
    job_type VARCHAR, rank INTEGER, local_rank INTEGER, world_size INTEGER, node VARCHAR, pid BIGINT, gpus VARCHAR[],
    launch VARCHAR, launch_order INTEGER, restart BIGINT,
    state VARCHAR, exit_code INTEGER, exit_signal INTEGER, reason VARCHAR, sets_run BOOLEAN,
    started_at TIMESTAMP, ended_at TIMESTAMP, produced BIGINT, nodes VARCHAR[], owner INTEGER, fallback BOOLEAN,
    sender BLOB, boot VARCHAR, late_us BIGINT, is_presumed BOOLEAN, clock_us BIGINT,
    uptime_us BIGINT, hostname VARCHAR, rank_pid BIGINT, agent_node VARCHAR, start_ticks BIGINT, is_remote BOOLEAN,
    parent VARCHAR, -- label of the process with an open run that started this one's launcher
    is_coauthor BOOLEAN, -- may write config and files like the primary: its parent, or the earlier primary of that
    are_gpus_resolved BOOLEAN,
    cause VARCHAR, -- EndCause, reported by the producer or its agent; NULL while it runs, finished or is presumed dead
    flush BIGINT DEFAULT getvariable('flush')
);
-- The run of each launch that required a run of this name to exist, or not to exist. Decided once, in log order.
CREATE TABLE base.demands (run_id VARCHAR, launch VARCHAR, run INTEGER);
-- Metric and phase names, names of system metrics, devices.
CREATE TABLE base.names (id INTEGER, name VARCHAR, flush BIGINT DEFAULT getvariable('flush'));

-- The numbers, by far the most rows. Each flush appends to the `_recent` tables, sorted by key, producer and step. Once
-- there are enough, they move to the other table in one large sorted piece: by run, key, producer and step, system
-- samples by key, device and time. A series is then next to itself, and a query skips the rest of the file.
CREATE TABLE base.metrics (
    producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, value DOUBLE,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.phases (
    producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, value DOUBLE,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.system (
    producer INTEGER, device INTEGER, key INTEGER, ts TIMESTAMP, value DOUBLE, seq BIGINT,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.metrics_recent AS FROM base.metrics;
ALTER TABLE base.metrics_recent ALTER flush SET DEFAULT getvariable('flush');
CREATE TABLE base.phases_recent AS FROM base.phases;
ALTER TABLE base.phases_recent ALTER flush SET DEFAULT getvariable('flush');
CREATE TABLE base.system_recent AS FROM base.system;
ALTER TABLE base.system_recent ALTER flush SET DEFAULT getvariable('flush');
CREATE TABLE base.texts (
    producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, value VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.histograms (
    producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, edges DOUBLE[], counts DOUBLE[],
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.console (
    producer INTEGER, stream VARCHAR, line_no BIGINT, seq BIGINT, ts TIMESTAMP, line VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.config (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, key VARCHAR, value VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.summary (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, key VARCHAR, value VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Saved files as reported, and the contents that have arrived: each at its own time, a content possibly several times.
CREATE TABLE base.files (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, path VARCHAR, bytes BIGINT, sha256 VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.stored (
    sha256 VARCHAR, bytes BIGINT, ts TIMESTAMP,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Logged media: what was at a step, and the content that it is.
CREATE TABLE base.media (
    producer INTEGER, key INTEGER, step BIGINT, seq BIGINT, ts TIMESTAMP, kind VARCHAR, sha256 VARCHAR, bytes BIGINT,
    metadata VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Artifacts as they were logged, by the digest of their manifest; the order of the rows is that of the log. A row of
-- artifact_files is an entry of a manifest, whichever label logged it.
CREATE TABLE base.artifact_files (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, digest VARCHAR, path VARCHAR, bytes BIGINT, sha256 VARCHAR,
    reference VARCHAR, omitted VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.artifacts (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, project VARCHAR, name VARCHAR, type VARCHAR, digest VARCHAR,
    n_files BIGINT, bytes BIGINT, metadata VARCHAR, description VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.artifact_aliases (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, project VARCHAR, name VARCHAR, digest VARCHAR, alias VARCHAR,
    is_set BIGINT,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.artifact_uses (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, project VARCHAR, name VARCHAR, digest VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
-- The number of each version. It stays when the version is deleted, so that no other gets it.
CREATE TABLE base.artifact_versions (
    project VARCHAR, name VARCHAR, digest VARCHAR, version BIGINT,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Calls of define_metric: a name or pattern of names; empty where nothing was given.
CREATE TABLE base.definitions (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, name VARCHAR, summary VARCHAR, step_metric VARCHAR,
    hidden VARCHAR, -- true or false
    flush BIGINT DEFAULT getvariable('flush')
);
-- Hashes of each rank's config by key, as JSON with sorted keys: equal configs are equal texts.
CREATE TABLE base.config_hashes (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, is_whole BOOLEAN, hashes VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Tags of runs as they were set; a value of NULL removes one.
CREATE TABLE base.run_tags (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, key VARCHAR, value VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.events (
    producer INTEGER, seq BIGINT, ts TIMESTAMP, kind VARCHAR, level VARCHAR, message VARCHAR, body VARCHAR,
    cause VARCHAR, -- EndCause of a `traceback`
    outcome VARCHAR, -- the predicate of an end that was not known when the end was reported
    flush BIGINT DEFAULT getvariable('flush')
);

-- Producers that were deleted. What still arrives of them is ignored.
CREATE TABLE base.deleted (uuid BLOB);
-- What was deleted, for a store: producers, or the runs that went with them or were named (empty uuid), or system
-- samples before a time (both empty). Rows of earlier flushes are concerned.
CREATE TABLE base.deletions (
    uuid BLOB, run_id VARCHAR, samples_until TIMESTAMP, ts TIMESTAMP,
    is_request BOOLEAN, -- other collectors of a store delete their part of the run; not if this answers such a request
    flush BIGINT DEFAULT getvariable('flush')
);
-- At most one row: facts of flushes up to this one have left the database, because a store has them.
-- lacks_series: the log no longer has them either; the rollups of their series must come from the store.
CREATE TABLE base.dropped (flush BIGINT, lacks_series BOOLEAN);
-- The changes that were applied. until: of `trim_system` and `roll_up`, in µs, and the version of `admit_blocks`;
-- every: of `roll_up`, in µs; else 0.
CREATE TABLE base.changes (number BIGINT, id BLOB, action VARCHAR, until BIGINT, every BIGINT);
-- Contents of saved files whose rows were deleted. Those that no other row names are removed from the disk.
CREATE TABLE base.orphans (sha256 VARCHAR);
-- What people keep under a name, for the page: JSON.
CREATE TABLE base.saved_views (name VARCHAR, body VARCHAR, ts TIMESTAMP);
-- The ledger of exactly-once: closed, disjoint ranges of seq per producer, appended by every flush, merged at times.
CREATE TABLE base.intervals (
    producer INTEGER, first_seq BIGINT, last_seq BIGINT, seen_at TIMESTAMP,
    flush BIGINT DEFAULT getvariable('flush')
);
CREATE TABLE base.losses (
    producer INTEGER, first_seq BIGINT, last_seq BIGINT, reason VARCHAR,
    flush BIGINT DEFAULT getvariable('flush')
);
-- Records that could not be decoded or applied, as far as they are kept (64 KiB each), and blocks of a newer version.
CREATE TABLE base.quarantine (
    number BIGINT, kind INTEGER, reason VARCHAR, bytes BLOB,
    code VARCHAR, -- QuarantineCode
    block_version BIGINT, -- of a block of a newer version that is not applied yet; NULL for anything else
    loses_events BOOLEAN -- whether events may be missing since; see State.damaged
);
-- Records with events that were refused because a key does not cover their node: the number of events, the sender, and
-- the names of its key at that time. A second row with the negative count cancels it, once a key covers the node.
CREATE TABLE base.refused (number BIGINT, sender BLOB, nodes VARCHAR, events BIGINT, ts TIMESTAMP);
