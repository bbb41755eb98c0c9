-- The views that users query. Names and columns are a contract. The index replaces all views after an update.
-- Joins to the dimensions cost a millisecond or two, and let names change without changes to a fact.

-- All facts, in no order: those in sorted pieces, and those of the last flushes.
CREATE OR REPLACE VIEW base.metric_facts AS FROM base.metrics UNION ALL FROM base.metrics_recent;
CREATE OR REPLACE VIEW base.phase_facts AS FROM base.phases UNION ALL FROM base.phases_recent;
CREATE OR REPLACE VIEW base.system_facts AS FROM base.system UNION ALL FROM base.system_recent;

CREATE OR REPLACE VIEW base.seen AS
SELECT producer, sum(last_seq - first_seq + 1)::BIGINT AS stored, max(last_seq) AS last_seq, max(seen_at) AS seen_at
FROM base.intervals GROUP BY producer;

CREATE OR REPLACE VIEW labels AS
SELECT r.run_id, p.label, p.attempt, p.is_primary, p.job_type, p.rank, p.local_rank, p.world_size, p.node, p.pid,
       p.hostname, p.rank_pid, p.gpus, coalesce(p.state, 'running') AS state, p.exit_code, p.exit_signal, p.reason,
       p.started_at, s.seen_at AS last_seen_at, p.ended_at
FROM base.producers p JOIN base.runs r ON r.run = p.run LEFT JOIN base.seen s ON s.producer = p.producer
WHERE p.role = 'rank';

-- The newest attempt of each label, and whether the run's state follows it: as the label requests, else if it is the
-- primary. The structs keep nulls, which max_by() would skip.
CREATE OR REPLACE VIEW base.newest AS
SELECT run, label, min(started_at) AS started_at, max(attempt) AS attempt,
       max_by(coalesce(state, 'running'), attempt) AS state, max_by({'of': exit_code}, attempt).of AS exit_code,
       max_by({'of': ended_at}, attempt).of AS ended_at,
       max_by({'of': coalesce(sets_run, is_primary)}, attempt).of AS sets_run
FROM base.producers WHERE role = 'rank' AND run IS NOT NULL GROUP BY run, label;

-- `unknown` is a label of another collector that is silent: only a reader of a store knows this state.
-- A run is running while a label that sets its state is; then the last of these to end decides. Without any, the worst
-- state of all labels counts.
CREATE OR REPLACE VIEW base.run_states AS
SELECT run, min(started_at) AS created_at, count(*) AS n_labels, max(attempt) + 1 AS n_attempts,
       CASE WHEN bool_or(sets_run) THEN
                CASE WHEN bool_or(state = 'running') FILTER (sets_run) THEN 'running'
                     WHEN bool_or(state = 'unknown') FILTER (sets_run) THEN 'unknown'
                     ELSE arg_max(state, ended_at) FILTER (sets_run) END
            WHEN bool_or(state = 'running') THEN 'running' WHEN bool_or(state = 'unknown') THEN 'unknown'
            WHEN bool_or(state = 'crashed') THEN 'crashed'
            WHEN bool_or(state = 'failed') THEN 'failed' ELSE 'finished' END AS state,
       CASE WHEN bool_or(sets_run) THEN arg_max(exit_code, ended_at) FILTER (sets_run)
            ELSE max(exit_code) END AS exit_code,
       CASE WHEN bool_or(sets_run) THEN max(ended_at) FILTER (sets_run) ELSE max(ended_at) END AS ended_at,
       count(*) FILTER (state IN ('failed', 'crashed')) AS n_failed, count(*) FILTER (state = 'running') AS n_running
FROM base.newest GROUP BY run;

CREATE OR REPLACE VIEW runs AS
SELECT r.run_id, r.project, r.name, r.run_group, r.job_type, r.tags, r.notes, s.state, s.exit_code, s.created_at,
       CASE WHEN s.state NOT IN ('running', 'unknown') THEN s.ended_at END AS ended_at,
       r.primary_label, s.n_labels, s.n_attempts, s.n_failed, s.n_running
FROM base.runs r JOIN base.run_states s ON s.run = r.run;

-- Empty without a store. With one, spanning/merged_views.py replaces it.
CREATE OR REPLACE VIEW run_places AS
SELECT NULL::VARCHAR AS run_id, NULL::VARCHAR AS collector, NULL::VARCHAR AS log, NULL::BOOLEAN AS is_here,
       NULL::BIGINT AS n_labels, NULL::BOOLEAN AS is_silent, NULL::TIMESTAMP AS seen_at
WHERE false;

CREATE OR REPLACE VIEW metrics AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.value
FROM base.metric_facts f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW texts AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.value
FROM base.texts f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW histograms AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.edges, f.counts
FROM base.histograms f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW media AS
SELECT i.run_id, i.label, i.attempt, f.step, n.name AS key, f.kind, f.metadata::JSON AS metadata, f.bytes, f.sha256, f.ts,
       s.sha256 IS NOT NULL AS is_stored
FROM base.media f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key
LEFT JOIN (SELECT DISTINCT sha256, bytes FROM base.stored) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes
WHERE i.run_id IS NOT NULL;

-- Every row that names a content. A content that none names is removed.
CREATE OR REPLACE VIEW base.named_contents AS
SELECT producer, sha256, bytes FROM base.files UNION ALL SELECT producer, sha256, bytes FROM base.media UNION ALL
SELECT producer, sha256, bytes FROM base.artifact_files WHERE reference = '' AND sha256 IS NOT NULL;

-- What was logged last describes a version and has the alias `latest`.
CREATE OR REPLACE VIEW artifacts AS
WITH logged AS (
    SELECT a.project, a.name, a.digest, max(a.rowid) AS place, max_by(a.type, a.rowid) AS type,
           max_by(a.metadata, a.rowid) AS metadata, max_by(a.description, a.rowid) AS description,
           any_value(a.n_files) AS n_files, any_value(a.bytes) AS bytes, min(a.ts) AS ts,
           list(DISTINCT i.run_id ORDER BY i.run_id) AS made_by
    FROM base.artifacts a JOIN base.identified i ON i.producer = a.producer
    WHERE i.run_id IS NOT NULL GROUP BY a.project, a.name, a.digest
), given AS (
    SELECT project, name, digest, alias, is_set FROM base.artifact_aliases WHERE alias <> 'latest'
    QUALIFY row_number() OVER (PARTITION BY project, name, alias ORDER BY rowid DESC) = 1
    UNION ALL
    SELECT project, name, digest, 'latest', 1 FROM logged
    QUALIFY row_number() OVER (PARTITION BY project, name ORDER BY place DESC) = 1
), aliases AS (
    SELECT project, name, digest, list(alias ORDER BY alias) AS aliases FROM given WHERE is_set = 1 GROUP BY ALL
), uses AS (
    SELECT u.project, u.name, u.digest, list(DISTINCT i.run_id ORDER BY i.run_id) AS used_by
    FROM base.artifact_uses u JOIN base.identified i ON i.producer = u.producer
    WHERE i.run_id IS NOT NULL GROUP BY ALL
)
SELECT l.project, l.name, v.version, l.type, coalesce(a.aliases, []) AS aliases, l.metadata::JSON AS metadata, l.digest,
       l.bytes, l.made_by, coalesce(u.used_by, []) AS used_by, l.n_files, l.description, l.ts
FROM logged l JOIN base.artifact_versions v USING (project, name, digest)
LEFT JOIN aliases a USING (project, name, digest) LEFT JOIN uses u USING (project, name, digest);

-- Bytes that one label omits may come from another that logs the same version.
CREATE OR REPLACE VIEW artifact_files AS
WITH entries AS (
    SELECT a.project, a.name, a.version, f.path, f.bytes, f.sha256, nullif(f.reference, '') AS reference,
           s.sha256 IS NOT NULL AND f.reference = '' AS is_stored, f.omitted
    FROM artifacts a JOIN base.artifact_files f ON f.digest = a.digest
    LEFT JOIN (SELECT DISTINCT sha256, bytes FROM base.stored) s ON s.sha256 = f.sha256 AND s.bytes = f.bytes
)
SELECT project, name, version, path, bytes, sha256, reference, is_stored,
       nullif(min(omitted) FILTER (NOT is_stored), '') AS omitted
FROM entries GROUP BY ALL;

CREATE OR REPLACE VIEW phases AS
-- safeguard: phase-has-time
SELECT i.run_id, i.label, i.attempt, i.rank, f.step, n.name AS phase, f.value AS seconds, f.ts
FROM base.phase_facts f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

-- Per producer: its last step, and when it reached it. Step and time are combined into one number, because a pair takes
-- twice as long. 2^60 exceeds any time in microseconds.
CREATE OR REPLACE VIEW base.reached_steps AS
SELECT i.run_id, f.producer, max(f.last_step) AS step,
       max_by(f.last_step_ts, f.last_step::HUGEINT * 1152921504606846976 - epoch_us(f.last_step_ts)) AS ts
FROM (SELECT producer, last_step, last_step_ts FROM base.metric_series
      UNION ALL SELECT producer, last_step, last_step_ts FROM base.phase_series) f
JOIN base.identified i ON i.producer = f.producer GROUP BY i.run_id, f.producer;

-- Per label, for its newest attempt that logged a step: its last step, compared with the foremost label of the run.
-- Grouped by the run's name, so that a query for one run reads only that run.
CREATE OR REPLACE VIEW rank_progress AS
WITH newest AS (
    SELECT r.run_id, i.label, i.attempt, i.rank, r.step, r.ts AS reached_at
    FROM base.reached_steps r JOIN base.identified i ON i.producer = r.producer WHERE r.run_id IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY r.run_id, i.label ORDER BY i.attempt DESC, r.step DESC) = 1
)
SELECT run_id, label, attempt, rank, step, reached_at,
       least((max(step) OVER of_run)::HUGEINT - step, 9223372036854775807)::BIGINT AS steps_behind,
       epoch_us(max_by(reached_at, (step, -epoch_us(reached_at))) OVER of_run - reached_at) / 1e6 AS seconds_behind
FROM newest WINDOW of_run AS (PARTITION BY run_id);

CREATE OR REPLACE VIEW system_samples AS
-- safeguard: sample-of-agents-node
SELECT coalesce(p.agent_node, p.node) AS node, d.name AS device, n.name AS name, s.ts, s.value
FROM base.system_facts s JOIN base.producers p ON p.producer = s.producer
JOIN base.names d ON d.id = s.device JOIN base.names n ON n.id = s.key;

-- The time in which an attempt had its label: until its end, at the latest until the next attempt's start. A vanished
-- process may be detected only after the next attempt has started, and each sample must belong to one attempt.
CREATE OR REPLACE VIEW base.tenures AS
SELECT p.*, least(
    coalesce(p.ended_at, TIMESTAMP 'infinity'),
    lead(p.started_at) OVER (PARTITION BY p.run, p.label ORDER BY p.started_at, p.attempt) - INTERVAL 1 MICROSECOND
) AS left_at
FROM base.producers p WHERE p.role = 'rank' AND p.run IS NOT NULL;

-- Which label claims which device of a node, and when: its GPUs, and its process if its agent saw it alive (older
-- agents report nothing about it). A later process with the same PID ends the earlier claim.
CREATE OR REPLACE VIEW base.claims AS
SELECT p.producer, r.run_id, p.label, p.rank, p.node, unnest(p.gpus) AS device, p.started_at, p.left_at
FROM base.tenures p JOIN base.runs r ON r.run = p.run
UNION ALL
SELECT p.producer, r.run_id, p.label, p.rank, p.node, 'pid:' || p.pid, p.started_at,
       least(p.left_at, min(p.started_at) OVER (  -- safeguard: pid-sample-of-one-process
           PARTITION BY p.node, p.boot, p.pid ORDER BY coalesce(p.start_ticks, -1) RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
       ) - INTERVAL 1 MICROSECOND)
FROM base.tenures p JOIN base.runs r ON r.run = p.run
WHERE p.pid IS NOT NULL AND (p.start_ticks IS NOT NULL OR p.agent_node IS NULL);

-- The label that represents a node in a run: the primary, else the lowest rank, else the first label.
CREATE OR REPLACE VIEW base.keepers AS
SELECT r.run_id, p.label, p.rank, p.node, p.started_at, p.left_at
FROM base.tenures p JOIN base.runs r ON r.run = p.run
QUALIFY p.label = first_value(p.label) OVER (
    PARTITION BY p.run, p.node ORDER BY p.is_primary DESC, coalesce(p.rank, 2147483647), p.producer
);

-- The owners of each device and their number, from each change to the next. GPUs and processes belong to the labels
-- that claim them. Device '' represents all other devices, which belong to the node's keepers.
CREATE OR REPLACE VIEW base.shares AS
WITH owners AS (
    SELECT run_id, label, rank, node, device, started_at, left_at FROM base.claims WHERE left_at >= started_at
    UNION ALL
    SELECT run_id, label, rank, node, '', started_at, left_at FROM base.keepers WHERE left_at >= started_at
), moments AS (
    SELECT node, device, since, sum(n) AS n FROM (
        SELECT node, device, started_at AS since, 1 AS n FROM owners
        UNION ALL
        SELECT node, device, CASE WHEN isfinite(left_at) THEN left_at + INTERVAL 1 MICROSECOND ELSE left_at END, -1
        FROM owners
    ) GROUP BY node, device, since
), spans AS (
    -- safeguard: sharers-at-sample-time
    SELECT node, device, since, lead(since) OVER changes AS until, (sum(n) OVER changes)::BIGINT AS n_sharers
    FROM moments WINDOW changes AS (PARTITION BY node, device ORDER BY since)
)
SELECT o.run_id, o.label, o.rank, o.node, o.device, s.since, s.until, s.n_sharers
FROM owners o JOIN spans s
  ON s.node = o.node AND s.device = o.device AND s.since >= o.started_at AND s.since <= o.left_at
WHERE s.until IS NOT NULL;

CREATE OR REPLACE VIEW system AS
SELECT o.run_id, o.label, o.rank, s.node, s.device, s.name, s.ts, s.value, o.n_sharers
FROM (
    -- safeguard: unclaimed-gpu-has-no-run
    SELECT *, CASE WHEN regexp_matches(device, '^(pid:|GPU-|MIG-)') THEN device ELSE '' END AS owned_as
    FROM system_samples
) s JOIN base.shares o ON o.node = s.node AND o.device = s.owned_as AND s.ts >= o.since AND s.ts < o.until;

CREATE OR REPLACE VIEW console AS
SELECT i.run_id, i.label, i.attempt, f.stream, f.line_no, f.seq, f.ts, f.line
FROM base.console f JOIN base.identified i ON i.producer = f.producer;

-- The latest values that the primary wrote. Other labels' values are in base.config, and `events` reports them as
-- refused. Keys that only the primary's parent wrote come from the parent: see `parent` in PROTOCOL.md.
CREATE OR REPLACE VIEW config AS
WITH own AS (
    SELECT i.run_id, c.key, c.value::JSON AS value, c.ts, i.label
    FROM base.config c JOIN base.identified i ON i.producer = c.producer
    WHERE i.is_primary OR i.is_coauthor  -- safeguard: coauthor-rows-stay
    -- safeguard: config-value-by-seq
    QUALIFY row_number() OVER (PARTITION BY i.run_id, c.key ORDER BY i.is_primary DESC, i.attempt DESC, c.seq DESC) = 1
), params AS (
    SELECT i.run_id, substr(t.key, 15) AS key, to_json(t.value) AS value, t.ts, i.label
    FROM base.run_tags t JOIN base.identified i ON i.producer = t.producer
    WHERE starts_with(t.key, 'chiplog:param/') AND i.run_id IS NOT NULL
    -- safeguard: first-param-counts
    QUALIFY row_number() OVER (PARTITION BY i.run_id, t.key ORDER BY t.ts, t.seq, i.label, i.attempt) = 1
)
SELECT * FROM own
UNION ALL
SELECT * FROM params p WHERE NOT EXISTS (SELECT 1 FROM own o WHERE o.run_id = p.run_id AND o.key = p.key);

-- The last value of each tag, whichever label set it. Labels of one time are told apart by their names, so that an
-- import and a rebuild give the same row.
CREATE OR REPLACE VIEW run_tags AS
SELECT run_id, key, value, label, ts FROM (
    SELECT i.run_id, t.key, t.value, i.label, t.ts
    FROM base.run_tags t JOIN base.identified i ON i.producer = t.producer
    WHERE i.run_id IS NOT NULL AND NOT starts_with(t.key, 'chiplog:param/')  -- those are config
    AND NOT starts_with(t.key, 'chiplog:import/')  -- digests of what was imported
    -- safeguard: last-tag-counts
    QUALIFY row_number() OVER (PARTITION BY i.run_id, t.key ORDER BY t.ts DESC, t.seq DESC, i.label, i.attempt DESC) = 1
) WHERE value IS NOT NULL;

-- The latest definition of each metric name per label (define_metric).
CREATE OR REPLACE VIEW metric_definitions AS
SELECT i.run_id, i.label, d.name, nullif(d.summary, '') AS summary, nullif(d.step_metric, '') AS step_metric,
       nullif(d.hidden, '')::BOOLEAN AS is_hidden
FROM base.definitions d JOIN base.identified i ON i.producer = d.producer
WHERE i.run_id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label, d.name ORDER BY i.attempt DESC, d.seq DESC) = 1;

-- The metrics that each name or pattern of a definition matches. An exact name has the highest weight, then the longer
-- pattern.
CREATE OR REPLACE VIEW base.meant AS
SELECT p.name, n.id AS key, (p.name = n.name)::BIGINT * 1000000 + length(p.name) AS weight
FROM (SELECT DISTINCT name FROM base.definitions WHERE summary <> '' OR hidden <> '') p
JOIN base.names n ON n.name = p.name OR n.name GLOB p.name;

-- The metrics of each run without a curve of their own. Of several labels that define the same name the primary counts.
CREATE OR REPLACE VIEW base.hidden_metrics AS
SELECT d.run_id, n.name AS key
FROM metric_definitions d JOIN base.meant m ON m.name = d.name JOIN base.names n ON n.id = m.key
LEFT JOIN base.runs r ON r.run_id = d.run_id AND r.primary_label = d.label
WHERE d.is_hidden IS NOT NULL
GROUP BY d.run_id, n.name
HAVING arg_max(d.is_hidden, (m.weight, m.name, r.run IS NOT NULL, d.label));

-- The summary function of each label's metrics, where one is defined: by the label itself, else by the primary.
CREATE OR REPLACE VIEW base.summary_kinds AS
WITH said AS (
    SELECT d.run_id, d.label, m.key, arg_max(d.summary, (m.weight, m.name)) AS kind
    FROM metric_definitions d JOIN base.meant m ON m.name = d.name WHERE d.summary IS NOT NULL
    GROUP BY d.run_id, d.label, m.key
), spread AS (
    SELECT DISTINCT r.run_id, p.label, s.key, s.kind
    FROM said s JOIN base.runs r ON r.run_id = s.run_id AND r.primary_label = s.label
    JOIN base.producers p ON p.run = r.run AND p.label <> s.label
)
SELECT run_id, label, key, kind FROM said
UNION ALL
SELECT run_id, label, key, kind FROM spread s
WHERE NOT EXISTS (SELECT 1 FROM said o WHERE o.run_id = s.run_id AND o.label = s.label AND o.key = s.key);

-- Per label and metric: the values from which a summary is computed. NaN is excluded from minimum, maximum and mean.
-- Grouped by the run's name, so that a query for one run reads only that run.
CREATE OR REPLACE VIEW base.tallies AS
SELECT run_id, label, key, arg_max(last, attempt) AS last, arg_min(first, attempt) AS first,
       min(min) AS min, max(max) AS max, CASE WHEN isfinite(fsum(sum)) THEN fsum(sum) ELSE sum(sum) END AS sum, sum(n)::BIGINT AS n,
       bool_or(is_primary) AS is_primary, min(rank) AS rank, sum(n_all)::BIGINT AS n_all, min(first_step) AS first_step,
       max(last_step) AS last_step, max(last_ts) AS last_ts,
       arg_max(last_step, attempt) AS step  -- safeguard: last-step-of-newest-attempt
FROM (
    SELECT i.run_id, i.label, i.attempt, i.producer, i.is_primary, i.rank, f.key, sum(f.n) AS n_all,
           min(f.first_step) AS first_step, max(f.last_step) AS last_step, max(f.last_ts) AS last_ts,
           arg_max(f.last, f.last_seq) AS last, arg_min(f.first, f.first_seq) AS first,
           min(f.min) AS min, max(f.max) AS max, CASE WHEN isfinite(fsum(f.sum)) THEN fsum(f.sum) ELSE sum(f.sum) END AS sum, sum(f.n_numbers) AS n
    FROM base.metric_series f JOIN base.identified i ON i.producer = f.producer
    GROUP BY i.run_id, i.label, i.attempt, i.producer, i.is_primary, i.rank, f.key
)
GROUP BY run_id, label, key;

-- What is known of each metric of each label without reading its values: from the rollups.
CREATE OR REPLACE VIEW keys AS
SELECT t.run_id, t.label, t.rank, n.name AS key, t.n_all AS n, t.n_all - t.n AS n_nan, t.first_step, t.last_step, t.step,
       t.last AS last_value, t.last_ts AS last_at, t.min, t.max, t.sum / nullif(t.n, 0) AS mean
FROM base.tallies t JOIN base.names n ON n.id = t.key WHERE t.run_id IS NOT NULL;

-- The summary values that the user set: the latest per label.
CREATE OR REPLACE VIEW base.summary_said AS
SELECT i.run_id, i.label, s.key, s.value::JSON AS value, i.is_primary, i.rank
FROM base.summary s JOIN base.identified i ON i.producer = s.producer
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label, s.key ORDER BY i.attempt DESC, s.seq DESC) = 1;

CREATE OR REPLACE VIEW summary AS
WITH computed AS (
    SELECT t.run_id, t.label, n.name AS key,
           CASE k.kind WHEN 'min' THEN coalesce(t.min, 'nan') WHEN 'max' THEN coalesce(t.max, 'nan')
                WHEN 'mean' THEN coalesce(t.sum / t.n, 'nan') WHEN 'first' THEN t.first ELSE t.last END AS value
    FROM base.tallies t JOIN base.names n ON n.id = t.key
    LEFT JOIN base.summary_kinds k ON k.run_id = t.run_id AND k.label = t.label AND k.key = t.key
    WHERE k.kind IS DISTINCT FROM 'none'
)
SELECT run_id, label, key, value FROM base.summary_said
UNION ALL
SELECT run_id, label, key, CASE WHEN isfinite(value) THEN to_json(value) ELSE to_json(value::VARCHAR) END
FROM computed c
WHERE NOT EXISTS (SELECT 1 FROM base.summary_said s WHERE s.run_id = c.run_id AND s.label = c.label AND s.key = c.key);

-- One summary per run: the primary's explicit value, else a value computed from all labels. `last` and `first` come
-- from the primary. If the primary has no value, the lowest rank with a value counts.
CREATE OR REPLACE VIEW run_summary AS
WITH said AS (
    SELECT run_id, key, value FROM base.summary_said
    QUALIFY row_number() OVER (PARTITION BY run_id, key ORDER BY is_primary DESC, rank NULLS LAST, label) = 1
), spoken AS (
    SELECT t.run_id, t.key, min(t.min) AS min, max(t.max) AS max,
           CASE WHEN isfinite(fsum(t.sum)) THEN fsum(t.sum) ELSE sum(t.sum) END AS sum, sum(t.n) AS n,
           -- Windows would take twice as long, and would not leave out the other keys.
           arg_min({'kind': k.kind, 'first': t.first, 'last': t.last},
                   (NOT t.is_primary, coalesce(t.rank, 2147483647), t.label)) AS own
    FROM base.tallies t
    LEFT JOIN base.summary_kinds k ON k.run_id = t.run_id AND k.label = t.label AND k.key = t.key
    GROUP BY t.run_id, t.key
), computed AS (
    SELECT s.run_id, n.name AS key,
           CASE s.own.kind WHEN 'min' THEN coalesce(s.min, 'nan') WHEN 'max' THEN coalesce(s.max, 'nan')
                WHEN 'mean' THEN coalesce(s.sum / s.n, 'nan')
                WHEN 'first' THEN s.own.first ELSE s.own.last END AS value
    FROM spoken s JOIN base.names n ON n.id = s.key WHERE s.own.kind IS DISTINCT FROM 'none'
)
SELECT run_id, key, value FROM said
UNION ALL
SELECT run_id, key, CASE WHEN isfinite(value) THEN to_json(value) ELSE to_json(value::VARCHAR) END
FROM computed c WHERE NOT EXISTS (SELECT 1 FROM said s WHERE s.run_id = c.run_id AND s.key = c.key);

-- Labels whose config differs from the primary's: the latest config of each label's newest attempt, among labels with
-- the primary's job type. A missing key counts only if the label was given its own config.
CREATE OR REPLACE VIEW base.config_last AS
SELECT c.producer, i.run, i.run_id, i.label, p.job_type, i.is_primary, i.is_coauthor, c.seq, c.ts, c.is_whole, c.hashes
FROM base.config_hashes c JOIN base.identified i ON i.producer = c.producer
JOIN base.producers p ON p.producer = c.producer
WHERE i.run_id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label ORDER BY i.attempt DESC, c.seq DESC) = 1;

CREATE OR REPLACE VIEW base.drifts AS
WITH pairs AS (
    SELECT l.producer, l.seq, l.ts, l.label, l.is_whole, r.primary_label,
           l.hashes::JSON::MAP(VARCHAR, VARCHAR) AS mine, h.hashes::JSON::MAP(VARCHAR, VARCHAR) AS theirs
    FROM base.config_last l JOIN base.runs r ON r.run = l.run
    JOIN base.config_last h ON h.run = l.run AND h.label = r.primary_label
    WHERE l.label <> r.primary_label AND NOT l.is_coauthor AND l.hashes <> h.hashes AND l.job_type IS NOT DISTINCT FROM h.job_type
), hashes AS (
    SELECT producer, unnest(map_keys(mine)) AS key, unnest(map_values(mine)) AS hash, true AS is_mine FROM pairs
    UNION ALL
    SELECT producer, unnest(map_keys(theirs)), unnest(map_values(theirs)), false FROM pairs
), compared AS (
    SELECT producer, key, max(hash) FILTER (is_mine) AS mine, max(hash) FILTER (NOT is_mine) AS theirs
    FROM hashes GROUP BY producer, key
)
SELECT p.producer, p.seq, p.ts, p.label, p.primary_label, list(c.key ORDER BY c.key) AS keys
FROM pairs p JOIN compared c ON c.producer = p.producer
WHERE c.mine IS DISTINCT FROM c.theirs AND (c.mine IS NOT NULL OR p.is_whole)
GROUP BY p.producer, p.seq, p.ts, p.label, p.primary_label;

-- Every save() of a primary, each file of any label below `mlflow/` (ANY_LABEL_FOLDER), and when the content arrived. It
-- may have arrived earlier, for another run.
CREATE OR REPLACE VIEW base.saves AS
SELECT i.run_id, i.label, i.attempt, i.node, f.seq, f.ts, f.path, f.bytes, f.sha256, s.stored_at
FROM base.files f JOIN base.identified i ON i.producer = f.producer
LEFT JOIN (SELECT sha256, bytes, min(ts) AS stored_at FROM base.stored GROUP BY ALL) s
  ON s.sha256 = f.sha256 AND s.bytes = f.bytes
WHERE (i.is_primary OR i.is_coauthor OR starts_with(f.path, 'mlflow/')) AND i.run_id IS NOT NULL;

-- The latest save of each path: within a label by attempt and seq, between labels by time.
CREATE OR REPLACE VIEW files AS
SELECT run_id, path, bytes, sha256, ts FROM (
    SELECT * FROM base.saves
    QUALIFY row_number() OVER (PARTITION BY run_id, path, label ORDER BY attempt DESC, seq DESC, ts DESC) = 1
)
QUALIFY row_number() OVER (PARTITION BY run_id, path ORDER BY ts DESC, label) = 1;

-- The message of an end that was reported before the identity names `a producer`. The row shows the label once it is
-- known. The end of a console helper is not the end of a label.
CREATE OR REPLACE VIEW base.told AS
SELECT e.producer, e.seq, e.ts, CASE WHEN is_helper THEN 'console_helper' ELSE e.kind END AS kind,
       CASE WHEN is_helper THEN 'warning' ELSE e.level END AS level,
       CASE WHEN is_helper THEN 'the helper that recorded the console ' || e.outcome
            WHEN is_early AND e.label IS NOT NULL THEN e.label || ' ' || e.outcome ELSE e.message END AS message, e.body,
       e.run_id, e.label, e.attempt, e.node
FROM (
    SELECT e.*, coalesce(i.run_id, CASE WHEN e.kind IN ('refused_node', 'run_edited') THEN e.body::JSON->>'run_id' END) AS run_id,
           coalesce(i.label, CASE WHEN e.kind = 'refused_node' THEN e.body::JSON->>'label' END) AS label, i.attempt,
           i.node, e.outcome IS NOT NULL AS is_early,  -- safeguard: early-end-by-outcome
           is_early AND coalesce(i.role = 'console', false) AS is_helper
    FROM base.events e LEFT JOIN base.identified i ON i.producer = e.producer
) e;

CREATE OR REPLACE VIEW events AS
SELECT run_id, label, attempt, node, seq, ts, kind, level, message, body::JSON AS body FROM base.told
UNION ALL
SELECT i.run_id, i.label, i.attempt, i.node, d.seq, d.ts, 'config_drift', 'warning',
       d.label || ' has another config than ' || d.primary_label || ': ' || array_to_string(d.keys[1:20], ', ')
           || CASE WHEN len(d.keys) > 20 THEN ' and ' || len(d.keys) - 20 || ' more' ELSE '' END,
       json_object('keys', d.keys, 'primary', d.primary_label)
FROM base.drifts d LEFT JOIN base.identified i ON i.producer = d.producer
UNION ALL
SELECT run_id, label, attempt, node, seq, greatest(ts, stored_at), 'file_stored', 'info',
       'file ' || path || ' arrived whole, ' || bytes || ' bytes',
       json_object('path', path, 'bytes', bytes, 'sha256', sha256)
FROM base.saves WHERE stored_at IS NOT NULL;

-- What GPUs reported. An agent names the MIG instances of a GPU that an event concerns as a whole.
CREATE OR REPLACE VIEW base.gpu_notices AS
SELECT e.node, e.seq, e.ts, e.kind, e.level, e.message, e.body::JSON AS body, e.body::JSON->>'device' AS device,
       list_prepend(e.body::JSON->>'device', e.body::JSON->>'$.instances[*]') AS devices
FROM base.told e WHERE e.kind = 'device_stale' OR starts_with(e.kind, 'gpu.');

-- The same beside each label that used the GPU then, or an instance of it. An event without a device, as of the driver,
-- concerns all GPUs of its node. Until a minute after its end a label counts as the user: a GPU that is lost ends the process
-- before the agent notices it. It does not once another run uses the GPU.
CREATE OR REPLACE VIEW base.gpu_uses AS
SELECT c.run_id, c.producer, c.label, c.rank, e.node, e.seq, e.ts, e.kind, e.level, e.message, e.body, e.device,
       TRY_CAST(e.body->>'code' AS INTEGER) AS xid
FROM (SELECT *, unnest(devices) AS used FROM base.gpu_notices) e JOIN (
    FROM base.claims UNION ALL
    SELECT o.* REPLACE ('' AS device) FROM base.claims o WHERE regexp_matches(o.device, '^(GPU-|MIG-)')
) c ON c.node = e.node AND c.device = e.used AND c.started_at <= e.ts
    AND e.ts - INTERVAL 60 SECOND <= c.left_at  -- safeguard: lost-gpu-of-ended-label
WINDOW of_gpu AS (PARTITION BY e.node, e.seq, e.ts, e.kind, c.device)
QUALIFY row_number() OVER (
    PARTITION BY e.node, e.device, e.kind, e.ts, e.seq, c.run_id, c.label ORDER BY c.started_at DESC, c.producer
) = 1 AND (
    e.ts <= c.left_at OR max(c.started_at) OVER of_gpu <= c.left_at
    OR arg_max(c.run_id, c.started_at) OVER of_gpu = c.run_id  -- safeguard: gpu-event-of-the-newer-run
);

-- produced = stored + lost + pending, always. Pending events are known to exist and have not arrived yet. A label's
-- events include those of its consoles. If a label was lost with its node, `produced` is unknown (NULL) until the node
-- is back. An event that was rejected has arrived, so the ledger has it; it is in no table, so it is lost.
CREATE OR REPLACE VIEW completeness AS
WITH lost AS (
    SELECT producer, sum(last_seq - first_seq + 1)::BIGINT AS lost, max(last_seq) AS last_seq,
           string_agg(DISTINCT reason, '; ' ORDER BY reason) AS reasons
    FROM base.losses GROUP BY producer
), rejected AS (
    SELECT producer, count(DISTINCT seq)::BIGINT AS n FROM base.events
    WHERE kind = 'quarantined' AND producer IS NOT NULL GROUP BY producer
), counted AS (
    SELECT i.owner, i.run_id, i.label, i.attempt,
           least(coalesce(r.n, 0), coalesce(s.stored, 0)) AS rejected,  -- safeguard: rejected-events-lost
           coalesce(s.stored, 0) - rejected AS stored, coalesce(l.lost, 0) + rejected AS lost,
           nullif(concat_ws('; ', l.reasons, CASE WHEN rejected > 0 THEN 'rejected: see quarantined in events' END), '')
               AS reasons,
           -- safeguard: known-events-count
           greatest(coalesce(p.produced, 0), coalesce(s.last_seq + 1, 0), coalesce(l.last_seq + 1, 0)) AS produced,
           coalesce(o.is_presumed, false) AS is_unknown  -- safeguard: lost-node-pending-unknown
    FROM base.producers p JOIN base.identified i ON i.producer = p.producer JOIN base.producers o ON o.producer = i.owner
    LEFT JOIN base.seen s ON s.producer = p.producer LEFT JOIN lost l ON l.producer = p.producer
    LEFT JOIN rejected r ON r.producer = p.producer
    WHERE o.role = 'rank' AND i.run_id IS NOT NULL
)
SELECT run_id, label, attempt, CASE WHEN NOT is_unknown THEN sum(produced)::BIGINT END AS produced,
       sum(stored)::BIGINT AS stored, sum(lost)::BIGINT AS lost,
       CASE WHEN NOT is_unknown THEN sum(produced - stored - lost)::BIGINT END AS pending,
       nullif(concat_ws('; ', CASE WHEN is_unknown THEN 'unknown: the node or collector was lost, and what it had not sent' END,
                        string_agg(reasons, '; ' ORDER BY reasons)), '') AS reasons
FROM counted GROUP BY owner, is_unknown, run_id, label, attempt;

-- The round of the run to which each attempt of a label belongs: labels that ran, and so failed, together. A rank's
-- attempt determines it: a round begins when the first rank begins its next attempt, or earlier when the last rank has
-- ended. A label that joins later, on a new node or as a child, counts its attempts from 0; it belongs to the round
-- that had begun when it started. Restart counts cannot be the key: each node has its own, and a node that joins begins
-- at 0. `clock_us` is the difference between the node's clock and the collector's: the least (received - made) of the
-- node's blocks. This view, and the views based on it, group by the run's name, as in rank_progress.
CREATE OR REPLACE VIEW base.rounds AS
WITH placed AS NOT MATERIALIZED (
    SELECT producer, run_id, label, attempt, rank, clock_us, epoch_us(started_at) + clock_us AS began_us,
           -- If nobody saw the end, its earliest possible time is the start; a round begins after that.
           lag(greatest(epoch_us(ended_at) - coalesce(late_us, 0) + CASE WHEN is_presumed THEN 0 ELSE clock_us END,
                        epoch_us(started_at) + clock_us + 1))
               OVER (PARTITION BY run_id, label ORDER BY attempt) AS left_us
    FROM (
        SELECT p.* EXCLUDE (clock_us, flush), r.run_id,
               coalesce(min(p.clock_us) OVER (PARTITION BY r.run_id, p.node), 0) AS clock_us
        FROM base.producers p JOIN base.runs r ON r.run = p.run WHERE p.role = 'rank'
    )
), begun AS (
    SELECT run_id, attempt, least(min(began_us), max(left_us)) AS at_us
    FROM placed WHERE rank IS NOT NULL AND attempt > 0 GROUP BY run_id, attempt
), put AS (
    SELECT *, greatest(attempt, coalesce(max(turn) OVER (PARTITION BY run_id ORDER BY at_us), 0)) AS round
    FROM (
        SELECT producer, run_id, label, attempt, clock_us, NULL AS turn, coalesce(began_us, -1) AS at_us FROM placed
        UNION ALL
        SELECT NULL, run_id, NULL, NULL, NULL, attempt, at_us FROM begun WHERE at_us IS NOT NULL
    )
)
-- A label is in a round only once: a slow rank that starts again belonged to the previous round.
SELECT producer, run_id, clock_us,
       greatest(attempt, least(round, lead(round) OVER (PARTITION BY run_id, label ORDER BY attempt) - 1)) AS round
FROM put WHERE producer IS NOT NULL;

-- Every attempt of a label that failed or crashed. An exception that was reported before the end gives the time and the
-- reason of the failure. The columns:
-- - at_us: the time by the collector's clock, as far as the node's clock difference is known.
-- - is_told: the process was asked to end. is_lost: it lost a peer, by its cause.
-- - is_ours: torch or a launcher reported the lost peer. Such a report is an echo of any other failure in the round, no
--   matter when that one was detected. is_explained: a label failed that neither was asked to end nor lost a peer.
-- - is_echo: the failure is a consequence of another label's: it was asked to end, or it lost a peer and another label
--   failed before it, within the uncertainty of the clocks. `before` below is near_us, far_us or nth.
-- - is_unseen: the way it ended is unknown. From the time another label was asked to end until 30 s later, it counts as
--   asked to end: a launcher ends all processes.
--
--     is_told  is_lost  before  is_ours  is_explained  is_echo
--     yes      no       -       -        -             yes      ended from outside, whatever its cause is
--     no       no       -       -        -             no       an independent failure
--     no       yes      yes     -        -             yes      the lost peer had failed before
--     no       yes      no      yes      yes           yes      the same, but the peer's failure was detected later
--     no       yes      no      yes      no            no       the first label, if all of them only lost peers
--     no       yes      no      no       -             no       the connection may not be one to a rank
CREATE OR REPLACE VIEW base.failures AS
WITH said AS (
    SELECT producer, min(ts) AS ts, arg_min(message, seq) AS message, arg_min(cause, seq) AS cause FROM base.events
    WHERE kind = 'traceback' AND producer IS NOT NULL GROUP BY producer
), failed AS (
    SELECT p.producer, o.run_id, o.round, p.label, p.rank, p.node, p.state, p.exit_code, p.exit_signal,
           -- safeguard: lost-peer-by-cause
           coalesce(s.cause, p.cause, '') AS cause, coalesce(s.message, p.reason) AS reason,
           coalesce(s.ts, p.ended_at) AS ts, CASE WHEN s.ts IS NULL THEN coalesce(p.late_us, 0) ELSE 0 END AS late_us,
           s.ts IS NULL AS is_by_status, coalesce(p.is_presumed, false) AS is_presumed, o.clock_us
    FROM base.producers p JOIN base.rounds o ON o.producer = p.producer LEFT JOIN said s ON s.producer = p.producer
    WHERE p.state IN ('failed', 'crashed')
), judged AS (
    SELECT *, epoch_us(ts) + CASE WHEN is_presumed THEN 0 ELSE clock_us END AS at_us,
           (is_by_status AND (coalesce(exit_signal, 0) IN (1, 2, 15) OR coalesce(exit_code, 0) IN (129, 130, 143)))
           OR cause = 'interrupted' AS is_told,
           cause = 'peer_lost' AS is_ours, cause IN ('peer_lost', 'connection_lost') AND NOT is_told AS is_lost,
           is_by_status AND state = 'crashed' AND NOT is_presumed AND exit_code IS NULL AND exit_signal IS NULL
               AND cause = 'unseen' AS is_unseen  -- safeguard: unobserved-end-by-cause
    FROM failed
), outside AS (
    SELECT *, min(at_us) FILTER (is_told) OVER of_round
                  - CASE WHEN arg_min(node, at_us) FILTER (is_told) OVER of_round IS DISTINCT FROM node THEN 100000 ELSE 0 END AS told_us,
           max(at_us) FILTER (is_told) OVER of_round + 30000000 AS until_us
    FROM judged WINDOW of_round AS (PARTITION BY run_id, round)
), told AS (
    SELECT * REPLACE (is_told OR is_unseen AND coalesce(at_us >= told_us AND at_us - late_us <= until_us, false) AS is_told)
    FROM outside
), beside AS (
    SELECT *, min(at_us - late_us) FILTER (NOT is_lost) OVER (PARTITION BY run_id, round, node) AS near_us,
           min(at_us - late_us) FILTER (NOT is_lost) OVER (PARTITION BY run_id, round) - 100000 AS far_us,
           bool_or(NOT is_lost AND NOT is_told) OVER (PARTITION BY run_id, round) AS is_explained,
           row_number() OVER (PARTITION BY run_id, round, is_lost ORDER BY at_us, rank, label, producer) AS nth
    FROM told
)
SELECT *, is_told OR is_lost AND (
    nth > 1 OR coalesce(near_us <= at_us, false) OR coalesce(far_us <= at_us, false) OR is_ours AND is_explained
) AS is_echo
FROM beside;

-- Per run and round: the first failure that is not an echo; if all are echoes, the first. A failure whose way to end is
-- unknown is doubtful if other labels were ended from outside within 30 s: it may have been as well. The clocks of two
-- nodes are compared by their fastest deliveries, which may differ by up to 0.1 s: see README.md.
CREATE OR REPLACE VIEW first_failure AS
WITH ranked AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, round ORDER BY is_echo, at_us, rank, label, producer) AS place,
           exit_signal IS NOT DISTINCT FROM 9 AND is_by_status AND cause <> 'out_of_memory' AS is_killed
    FROM base.failures
), apart AS (
    SELECT f.run_id, f.round, o.producer, o.label, o.rank, o.node, o.ts, o.reason,
           o.is_echo OR o.is_killed AS is_echo,
           (o.at_us - f.at_us) / 1e6 AS after_s, o.late_us / 1e6 AS late_s,
           CASE WHEN o.node = f.node THEN 0.0 ELSE 0.1 END AS clock_s, o.is_echo AND NOT f.is_echo AS is_only_echo,
           f.is_unseen AND NOT f.is_echo AND (o.is_told OR o.is_killed) AND abs(o.at_us - f.at_us) <= 30000000 AS is_doubt
    FROM ranked f JOIN ranked o ON o.run_id = f.run_id AND o.round = f.round AND o.place > 1 WHERE f.place = 1
), others AS (
    SELECT run_id, round, max(clock_s) AS clock_s,
           bool_and(NOT is_doubt AND (is_only_echo OR after_s - late_s - clock_s > 0)) AS are_later,
           list({'label': label, 'rank': rank, 'node': node, 'ts': ts, 'after_s': after_s, 'is_echo': is_echo, 'reason': reason}
                ORDER BY after_s, rank, label, producer) AS others
    FROM apart GROUP BY run_id, round
), gpu_events AS (
    -- An agent notices the loss of a GPU a few seconds after the rank. XID 45 follows when the driver ends what a process does
    -- on a GPU, and 43 beside it: after the failure they are no cause of it. An exit status is known after that.
    SELECT f.run_id, f.round, arg_min(
               {'kind': g.kind, 'xid': g.xid, 'level': g.level, 'device': g.device, 'ts': g.ts, 'message': g.message},
               (g.level <> 'error', g.level = 'info', g.ts, g.seq)
           ) AS gpu_event
    FROM ranked f JOIN base.gpu_uses g ON g.run_id = f.run_id AND g.producer = f.producer
    WHERE f.place = 1 AND g.kind IN ('gpu.xid', 'gpu.lost', 'gpu.ecc_uncorrected')
      AND g.ts BETWEEN f.ts - INTERVAL 60 SECOND AND f.ts + INTERVAL 10 SECOND  -- safeguard: gpu-event-near-failure
      -- safeguard: gpu-cleanup-is-no-cause
      AND NOT coalesce(g.xid IN (43, 45) AND g.ts > f.ts OR g.xid = 45 AND f.is_by_status, false)
    GROUP BY f.run_id, f.round
)
SELECT f.run_id, f.round AS attempt, f.label, f.rank, f.node, f.ts, f.state, f.exit_code, f.exit_signal, f.reason,
       NOT f.is_echo AS is_cause, f.late_us / 1e6 + coalesce(o.clock_s, 0.0) AS uncertainty_s,
       coalesce(o.are_later, true) AS is_certain, coalesce(o.others, []) AS others, g.gpu_event
FROM ranked f LEFT JOIN others o ON o.run_id = f.run_id AND o.round = f.round
LEFT JOIN gpu_events g ON g.run_id = f.run_id AND g.round = f.round
WHERE f.place = 1;

-- Per round of a run whose labels had logged a step before: the cost of the restart. Only these labels count, and only
-- what they logged before the first of them resumed: other labels may still run. Only ranks count; without ranks, all
-- labels do. Resuming a finished attempt is not a restart. Times are by the collector's clock, as in `first_failure`.
-- Steps are compared by metric name: a metric that is logged without a step continues from the largest step of its
-- label, also after a restart, and does not go back. Among the names that go back, the one logged most often shows
-- where the training resumed. Without any, it is the name that resumed closest to its last step.
CREATE OR REPLACE VIEW restarts AS
WITH counted AS NOT MATERIALIZED (
    SELECT run_id, producer, label, round, clock_us, bool_or(is_broken_off) OVER (PARTITION BY run_id, round) AS is_broken_off
    FROM (
        SELECT o.run_id, o.producer, p.label, o.round, o.clock_us, p.state IS DISTINCT FROM 'finished'
                   AND lead(o.producer) OVER (PARTITION BY o.run_id, p.label ORDER BY o.round) IS NOT NULL AS is_broken_off
        FROM base.rounds o JOIN base.producers p ON p.producer = o.producer
        QUALIFY p.rank IS NOT NULL OR NOT bool_or(p.rank IS NOT NULL) OVER (PARTITION BY o.run_id)
    )
    -- Most runs never restarted: their facts are not read.
    QUALIFY bool_or(is_broken_off) OVER (PARTITION BY run_id)
), facts AS NOT MATERIALIZED (
    SELECT c.run_id, c.producer, c.label, c.round, c.is_broken_off, f.key, f.step, f.ts, epoch_us(f.ts) + c.clock_us AS at_us
    FROM (SELECT producer, key, step, ts FROM base.metric_facts UNION ALL SELECT producer, -key, step, ts FROM base.phase_facts) f
    JOIN counted c ON c.producer = f.producer
), spans AS (
    SELECT run_id, producer, round, keys, lag(producer) OVER of_label AS left_by,
           lag(round) OVER of_label AS left_in, lag(is_broken_off) OVER of_label AS is_restart
    FROM (
        SELECT run_id, producer, label, round, is_broken_off,
               list({'key': key, 'step': first_step, 'ts': first_ts, 'at_us': first_us}) AS keys
        FROM (
            SELECT run_id, producer, label, round, is_broken_off, key, arg_min(step, at_us) AS first_step,
                   arg_min(ts, at_us) AS first_ts, min(at_us) AS first_us
            FROM facts GROUP BY run_id, producer, label, round, is_broken_off, key
        ) GROUP BY run_id, producer, label, round, is_broken_off
    ) WINDOW of_label AS (PARTITION BY run_id, label ORDER BY round)
), begun AS (
    SELECT run_id, round, max(left_in) AS before, list(left_by) AS left_by, flatten(list(keys)) AS keys
    FROM spans WHERE left_by IS NOT NULL GROUP BY run_id, round HAVING bool_or(is_restart)
), firsts AS (
    SELECT run_id, round, before, left_by, k.key AS key, arg_min(k.step, k.at_us) AS step, arg_min(k.ts, k.at_us) AS ts,
           min(k.at_us) AS at_us
    FROM (SELECT * EXCLUDE (keys), unnest(keys) AS k FROM begun) GROUP BY run_id, round, before, left_by, k.key
), resumed AS (
    SELECT r.* FROM firsts r LEFT JOIN (
        SELECT r.run_id, r.round, r.key, max(f.step) AS last_step, count(*) AS n
        FROM (SELECT *, unnest(left_by) AS producer FROM firsts) r
        JOIN facts f ON f.run_id = r.run_id AND f.producer = r.producer AND f.key = r.key AND f.at_us < r.at_us
        GROUP BY r.run_id, r.round, r.key
    ) b ON b.run_id = r.run_id AND b.round = r.round AND b.key = r.key
    QUALIFY row_number() OVER (
        PARTITION BY r.run_id, r.round
        -- safeguard: resume-point-by-step-back
        ORDER BY CASE WHEN b.last_step >= r.step THEN b.n ELSE 0 END DESC, b.last_step::HUGEINT - r.step DESC NULLS LAST, r.at_us, r.key
    ) = 1
), costs AS (
    SELECT r.run_id, r.round, r.before, r.step AS resumed_step, r.ts AS resumed_at, r.at_us AS resumed_us,
           coalesce(max(f.step) FILTER (f.key = r.key), max(f.step)) AS last_step,
           arg_max(f.ts, f.at_us) AS stopped_at, max(f.at_us) AS stopped_us,
           min(f.at_us) FILTER (f.key = r.key AND f.step >= r.step) AS again_us
    FROM (SELECT *, unnest(left_by) AS producer FROM resumed) r
    JOIN facts f ON f.run_id = r.run_id AND f.producer = r.producer AND f.at_us < r.at_us
    GROUP BY r.run_id, r.round, r.before, r.step, r.ts, r.at_us
)
SELECT c.run_id, c.round AS attempt, f.label, f.reason, c.last_step, c.stopped_at, c.resumed_step, c.resumed_at,
       greatest(least(c.last_step::HUGEINT - c.resumed_step + 1, 9223372036854775807), 0)::BIGINT AS steps_again,
       (c.resumed_us - c.stopped_us) / 1e6 AS down_s, coalesce((c.stopped_us - c.again_us) / 1e6, 0.0) AS again_s,
       down_s + again_s AS cost_s
FROM costs c LEFT JOIN first_failure f ON f.run_id = c.run_id AND f.attempt = c.before;

-- How much a run stores: its numbers, and the contents of its files, media and artifacts, each once.
CREATE OR REPLACE VIEW run_sizes AS
SELECT r.run_id, coalesce(v.n, 0)::BIGINT AS n_values, coalesce(c.n, 0) AS n_contents,
       coalesce(c.bytes, 0)::BIGINT AS content_bytes
FROM runs r LEFT JOIN (
    SELECT i.run_id, sum(s.n) AS n
    FROM base.metric_series s JOIN base.identified i ON i.producer = s.producer GROUP BY i.run_id
) v ON v.run_id = r.run_id LEFT JOIN (
    SELECT run_id, count(*) AS n, sum(bytes) AS bytes FROM (
        SELECT DISTINCT i.run_id, f.sha256, f.bytes
        FROM base.named_contents f JOIN base.identified i ON i.producer = f.producer
    ) GROUP BY run_id
) c ON c.run_id = r.run_id;

-- What people keep under a name, for the page.
CREATE OR REPLACE VIEW saved_views AS SELECT name, body::JSON AS view, ts FROM base.saved_views;
