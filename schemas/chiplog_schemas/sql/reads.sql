-- The read model: what chiplog's page, commands, exports and imports ask. These views and macros are chiplog's own: they
-- change with the version, without notice. Users query the documented views and macros, see docs/sql.
-- They keep the integers of names and producers, with which the callers compute. A filter on run_id reaches the tables:
-- windows and groups have it. The index replaces them after an update. A change needs a higher READS.
CREATE SCHEMA IF NOT EXISTS reads;

-- One row: how far the log has been applied, the number of deleted producers, and the number of this read model, READS.
CREATE OR REPLACE VIEW reads.state AS
SELECT coalesce(max(next_number), 0)::BIGINT AS position, (SELECT count(*) FROM base.deleted) AS n_deleted, 5 AS version
FROM base.position;

-- Names of metrics, phases, system metrics and devices by their integers, in other views `key`.
CREATE OR REPLACE VIEW reads.names AS SELECT id, name FROM base.names;

-- The view `runs`, and what of a run is in no view.
CREATE OR REPLACE VIEW reads.runs AS
SELECT r.*, b.primary_launch, b.primary_restart, b.told FROM main.runs r JOIN base.runs b USING (run_id);

-- Who wrote events: each opened run in one process, also consoles, and agents, which have no run. id: 32 hex digits.
-- shown_: the names under which views show its rows; a console has those of its owner.
CREATE OR REPLACE VIEW reads.producers AS
SELECT p.* EXCLUDE (run, uuid, flush), hex(p.uuid) AS id, i.run_id, i.label AS shown_label, i.attempt AS shown_attempt,
       i.rank AS shown_rank
FROM base.identified i JOIN base.producers p ON p.producer = i.producer;

CREATE OR REPLACE VIEW reads.deleted_producers AS SELECT hex(uuid) AS id FROM base.deleted;

-- Events that have arrived, as closed ranges of seq that do not touch; and those that never will.
CREATE OR REPLACE VIEW reads.received_ranges AS
SELECT run_id, producer, min(first_seq) AS first_seq, max(last_seq) AS last_seq, max(seen_at) AS seen_at FROM (
    SELECT *, count(*) FILTER (is_new) OVER (PARTITION BY run_id, producer ORDER BY first_seq) AS part FROM (
        SELECT i.run_id, r.producer, r.first_seq, r.last_seq, r.seen_at, coalesce(
            r.first_seq <> lag(r.last_seq) OVER (PARTITION BY i.run_id, r.producer ORDER BY r.first_seq) + 1, true) AS is_new
        FROM base.intervals r JOIN base.identified i ON i.producer = r.producer
    )
) GROUP BY run_id, producer, part;

CREATE OR REPLACE VIEW reads.lost_ranges AS
SELECT i.run_id, l.producer, l.first_seq, l.last_seq, l.reason
FROM base.losses l JOIN base.identified i ON i.producer = l.producer;

CREATE OR REPLACE VIEW reads.rejected_events AS
SELECT producer, seq, message FROM base.events WHERE kind = 'quarantined' AND producer IS NOT NULL;

-- What is known of each metric and phase of each producer without reading its values. A series has several rows until
-- the index merges them.
CREATE OR REPLACE VIEW reads.series AS
SELECT i.run_id, i.label, i.attempt, i.rank, s.is_metric, n.name, s.key, s.producer, s.n, s.first_step, s.last_step,
       s.first_ts, s.last_ts
FROM (
    SELECT true AS is_metric, producer, key, n, first_step, last_step, first_ts, last_ts FROM base.metric_series
    UNION ALL
    SELECT false, producer, key, n, first_step, last_step, first_ts, last_ts FROM base.phase_series
) s JOIN base.identified i ON i.producer = s.producer JOIN base.names n ON n.id = s.key;

-- What a SELECT promises that reads rows with integers for producers and keys: it uses only those of these runs, or of
-- these keys. With a store, rows of others may then be missing.
CREATE OR REPLACE MACRO reads.of_runs(run_ids) AS true;
CREATE OR REPLACE MACRO reads.of_keys(names) AS true;

-- The points of metrics at each resolution. A reader chooses a level, the steps in a bucket: 1, 16 or 256. It reads the
-- points of this level, and those of level 0, which are the values of the last flushes: buckets do not have them yet.
-- n, sum, min and max leave NaN out. Only a single value has `value` and a `seq` that is not 0.
CREATE OR REPLACE VIEW reads.points AS
SELECT 0::SMALLINT AS level, producer, key, step, seq, ts, value, (NOT isnan(value))::BIGINT AS n, nullif(value, 'nan') AS sum,
       nullif(value, 'nan') AS min, nullif(value, 'nan') AS max
FROM base.metrics_recent
UNION ALL
SELECT 1::SMALLINT, producer, key, step, seq, ts, value, (NOT isnan(value))::BIGINT, nullif(value, 'nan'), nullif(value, 'nan'),
       nullif(value, 'nan')
FROM base.metrics
UNION ALL
SELECT width, producer, key, step, 0, ts, NULL, n_numbers, sum, min, max FROM base.metric_levels;

-- Labels by the number that each has among the labels of its run, in order of names.
CREATE OR REPLACE VIEW reads.labels AS FROM base.labels_by_place;

-- The phases of each run. may_wait: see base.may_wait.
CREATE OR REPLACE VIEW reads.run_phases AS
SELECT p.run_id, n.name, n.id AS key, base.may_wait(n.name) AS may_wait, min(s.first_step) AS first_step,
       max(s.last_step) AS last_step
FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer JOIN base.names n ON n.id = s.key
GROUP BY p.run_id, n.name, n.id;

-- The labels that have a phase; -1 means any.
CREATE OR REPLACE MACRO reads.labels_with_phase(run, phase) AS TABLE
SELECT l.place, l.label, l.rank FROM base.labels_by_place l
WHERE l.run_id = run AND l.place IN (
    SELECT p.place FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer
    WHERE p.run_id = run AND phase IN (s.key, -1)
);

CREATE OR REPLACE VIEW reads.phase_values AS
SELECT p.run_id, p.place, p.label, p.attempt, f.producer, f.key, f.step, f.seq, f.ts, f.value AS seconds
FROM base.phase_facts f JOIN base.label_places p ON p.producer = f.producer;

-- Phases that most labels of a run do not have: the time outside of shared phases contains them.
CREATE OR REPLACE VIEW reads.uncommon_phases AS
SELECT k.run_id, k.place, k.producer, k.key, n.name
FROM base.phase_kinds k JOIN base.names n ON n.id = k.key WHERE NOT k.is_shared AND NOT k.is_step;

CREATE OR REPLACE MACRO reads.may_wait(phase) AS base.may_wait(phase);

-- How long each label took in each step and phase, beside the other labels. Key -1 is the phase `outside`.
CREATE OR REPLACE MACRO reads.compared(first_step, last_step) AS TABLE
FROM base.compared_with_outside(first_step, last_step);

CREATE OR REPLACE MACRO reads.outside(first_step, last_step) AS TABLE FROM base.outside(first_step, last_step);

CREATE OR REPLACE VIEW reads.phase_names AS FROM base.phase_names;

CREATE OR REPLACE MACRO reads.straggler_windows(end_step) AS TABLE FROM base.straggler_windows_until(end_step);

CREATE OR REPLACE VIEW reads.finished_steps AS FROM base.finished_steps;

-- The first step with phases that a label recorded after the first of some labels failed, by the collector's clock.
CREATE OR REPLACE MACRO reads.step_after_failure(run, failed_labels, end_step) AS TABLE
SELECT min(f.step) AS step FROM base.phase_facts f JOIN base.rounds r ON r.producer = f.producer
WHERE r.run_id = run AND f.step <= end_step AND epoch_us(f.ts) + r.clock_us > (
    SELECT min(failed_us) FROM (
        SELECT arg_max(e.at_us - e.late_us, e.round) AS failed_us FROM base.failures e
        WHERE e.run_id = run AND list_contains(failed_labels, e.label) GROUP BY e.label
    )
);

-- The labels of one round of a run, and how each ended. at_us: by the collector's clock.
CREATE OR REPLACE MACRO reads.round_of_run(run, of_round) AS TABLE
SELECT p.producer, p.label, p.attempt, p.rank, p.node, coalesce(p.state, 'running') AS state, p.exit_code,
       p.exit_signal, coalesce(f.reason, p.reason) AS reason, coalesce(f.ts, p.ended_at) AS ts,
       coalesce(f.at_us, epoch_us(p.ended_at) + o.clock_us) AS at_us
FROM base.rounds o JOIN base.producers p ON p.producer = o.producer
LEFT JOIN (SELECT e.producer, e.reason, e.ts, e.at_us FROM base.failures e WHERE e.run_id = run) f
    ON f.producer = o.producer
WHERE o.run_id = run AND o.round = of_round;

-- Printed lines in the order in which they were stored: `place` grows, and may change when rows are deleted.
CREATE OR REPLACE VIEW reads.console AS
SELECT f.rowid AS place, i.run_id, i.label, i.attempt, f.producer, f.stream, f.line_no, f.seq, f.ts, f.line
FROM base.console f JOIN base.identified i ON i.producer = f.producer;

-- Media without whether they are stored, and with their metadata as text: with 100,000 images that saves a second.
CREATE OR REPLACE VIEW reads.media AS
SELECT i.run_id, i.label, i.attempt, n.name AS key, f.kind, f.step, f.seq, f.ts, f.sha256, f.bytes, f.metadata
FROM base.media f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

-- Contents that have arrived, each as often as it did.
CREATE OR REPLACE VIEW reads.stored_contents AS FROM base.stored;

CREATE OR REPLACE VIEW reads.run_sizes AS FROM main.run_sizes;

-- The contents that a run names: saved files, media and files of artifacts, each once.
CREATE OR REPLACE VIEW reads.contents AS
SELECT i.run_id, f.sha256, f.bytes, bool_or(s.sha256 IS NOT NULL) AS is_stored
FROM base.named_contents f JOIN base.identified i ON i.producer = f.producer
LEFT JOIN (SELECT DISTINCT sha256, bytes FROM base.stored) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes
GROUP BY i.run_id, f.sha256, f.bytes;

-- The view `files`, with the label that saved each, and whether its content has arrived.
CREATE OR REPLACE VIEW reads.files AS
SELECT run_id, path, bytes, sha256, ts, label, stored_at IS NOT NULL AS is_stored FROM (
    SELECT * FROM base.saves
    QUALIFY row_number() OVER (PARTITION BY run_id, path, label ORDER BY attempt DESC, seq DESC, ts DESC) = 1
)
QUALIFY row_number() OVER (PARTITION BY run_id, path ORDER BY ts DESC, label) = 1;

CREATE OR REPLACE VIEW reads.hidden_metrics AS FROM base.hidden_metrics;

-- The summary values that a label set: they are not computed.
CREATE OR REPLACE VIEW reads.set_summaries AS SELECT run_id, label, key FROM base.summary_said;

-- The labels that use each device of a node, from each change to the next. Device '' means all others.
CREATE OR REPLACE VIEW reads.device_users AS FROM base.shares;

-- The series that gives each node its step: the metric with the most values of the node's primary, else of its lowest
-- rank; without metrics, the phase with the most values. A row for each of the label's producers on the node.
CREATE OR REPLACE VIEW reads.step_series AS
WITH keepers AS NOT MATERIALIZED (
    SELECT DISTINCT k.run_id, k.node, i.producer
    FROM base.keepers k JOIN base.identified i ON i.run_id = k.run_id AND i.label = k.label AND i.node = k.node
    WHERE i.role = 'rank'
), series AS NOT MATERIALIZED (
    SELECT k.run_id, k.node, k.producer, s.key, s.is_metric, sum(s.n) AS n, min(s.first_step) AS first_step,
           max(s.last_step) AS last_step, min(s.first_ts) AS first_ts, max(s.last_ts) AS last_ts
    FROM keepers k JOIN (
        SELECT producer, key, n, first_step, last_step, first_ts, last_ts, true AS is_metric FROM base.metric_series
        UNION ALL
        SELECT producer, key, n, first_step, last_step, first_ts, last_ts, false FROM base.phase_series
    ) s ON s.producer = k.producer
    GROUP BY k.run_id, k.node, k.producer, s.key, s.is_metric
)
FROM series QUALIFY row_number() OVER (PARTITION BY run_id, producer ORDER BY is_metric DESC, n DESC, key) = 1;

-- The step of each node over time. level: as of reads.points.
CREATE OR REPLACE MACRO reads.node_steps(run, at_level) AS TABLE
WITH best AS (FROM reads.step_series b WHERE b.run_id = run)
SELECT b.node, f.ts, f.step FROM reads.points f
JOIN best b ON b.producer = f.producer AND b.key = f.key AND b.is_metric WHERE f.level IN (0, at_level)
UNION ALL
SELECT b.node, f.ts, f.step FROM base.phase_facts f
JOIN best b ON b.producer = f.producer AND b.key = f.key AND NOT b.is_metric;

-- What GPUs reported, beside the labels that used them, without the steps: with a store, no file is read for it.
CREATE OR REPLACE VIEW reads.gpu_events AS
SELECT run_id, label, rank, node, device, ts, kind, level, xid, message, body FROM base.gpu_uses;

-- Rows as they were logged, with the integers of producer and key: what an export has.
CREATE OR REPLACE VIEW reads.logged_metrics AS FROM base.metric_facts;
CREATE OR REPLACE VIEW reads.logged_phases AS FROM base.phase_facts;
CREATE OR REPLACE VIEW reads.logged_texts AS FROM base.texts;
CREATE OR REPLACE VIEW reads.logged_histograms AS FROM base.histograms;
CREATE OR REPLACE VIEW reads.logged_console AS FROM base.console;
CREATE OR REPLACE VIEW reads.logged_config AS FROM base.config;
CREATE OR REPLACE VIEW reads.logged_summary AS FROM base.summary;
CREATE OR REPLACE VIEW reads.logged_definitions AS FROM base.definitions;
CREATE OR REPLACE VIEW reads.logged_config_hashes AS FROM base.config_hashes;
CREATE OR REPLACE VIEW reads.logged_artifacts AS FROM base.artifacts;
CREATE OR REPLACE VIEW reads.logged_artifact_aliases AS FROM base.artifact_aliases;
CREATE OR REPLACE VIEW reads.logged_artifact_uses AS FROM base.artifact_uses;
CREATE OR REPLACE VIEW reads.logged_run_tags AS FROM base.run_tags;
-- As the view `events` shows them: an early end names its label. Only a `traceback` has a cause.
CREATE OR REPLACE VIEW reads.logged_events AS
SELECT producer, seq, ts, kind, level, message, body, NULL::VARCHAR AS cause FROM base.told WHERE kind <> 'traceback'
UNION ALL
SELECT producer, seq, ts, kind, level, message, body, cause FROM base.events WHERE kind = 'traceback';
-- With the time at which their content arrived.
CREATE OR REPLACE VIEW reads.logged_media AS
SELECT f.* EXCLUDE (flush), s.stored_at FROM base.media f LEFT JOIN (
    SELECT sha256, bytes, min(ts) AS stored_at FROM base.stored GROUP BY ALL
) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes;
CREATE OR REPLACE VIEW reads.logged_files AS
SELECT f.* EXCLUDE (flush), s.stored_at FROM base.files f LEFT JOIN (
    SELECT sha256, bytes, min(ts) AS stored_at FROM base.stored GROUP BY ALL
) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes;
CREATE OR REPLACE VIEW reads.logged_artifact_files AS
SELECT f.* EXCLUDE (flush), s.stored_at FROM base.artifact_files f LEFT JOIN (
    SELECT sha256, bytes, min(ts) AS stored_at FROM base.stored GROUP BY ALL
) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes AND f.reference = '';
