-- Views over the tables of a store, for engines that have none of chiplog's own. In DuckDB's SQL; sqlglot writes it for the
-- others. Columns are those of the views of a collector, except where a line says otherwise. JSON is text.

-- Dimensions: of each producer and each run the newest row counts.
CREATE VIEW store_names AS
WITH newest AS (
    SELECT * FROM store_producers QUALIFY row_number() OVER (PARTITION BY producer ORDER BY number DESC, log) = 1
)
SELECT p.producer, w.run_id, w.label, w.attempt, w.rank, p.node, p.agent_node, p.is_primary,
       coalesce(p.is_coauthor, false) AS is_coauthor, w.producer AS owner, p.role, p.job_type, p.local_rank,
       p.world_size, p.pid, p.hostname, p.rank_pid, p.gpus, p.state, p.exit_code, p.exit_signal, p.reason, p.sets_run,
       p.started_at, p.ended_at, p.produced, w.role AS owner_role, coalesce(w.is_presumed, false) AS is_unknown
FROM newest p
LEFT JOIN newest o ON p.role = 'console' AND o.producer = p.owner AND o.role = 'rank'
    AND coalesce(o.agent_node, o.node) = coalesce(p.agent_node, p.node)
JOIN newest w ON w.producer = coalesce(o.producer, p.producer);

-- Ranges of seq may overlap: a collector publishes them again when it merges its own.
CREATE VIEW store_seen AS
SELECT producer, CAST(sum(greatest(last_seq - greatest(first_seq, coalesce(before + 1, first_seq)) + 1, 0)) AS BIGINT) AS stored,
       max(last_seq) AS last_seq, max(seen_at) AS seen_at
FROM (
    SELECT producer, first_seq, last_seq, seen_at, max(last_seq) OVER (
        PARTITION BY producer ORDER BY first_seq, last_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM store_intervals
) ranges GROUP BY producer;

CREATE VIEW labels AS
SELECT p.run_id, p.label, p.attempt, p.is_primary, p.job_type, p.rank, p.local_rank, p.world_size, p.node, p.pid,
       p.hostname, p.rank_pid, p.gpus, coalesce(p.state, 'running') AS state, p.exit_code, p.exit_signal, p.reason,
       p.started_at, s.seen_at AS last_seen_at, p.ended_at
FROM store_names p LEFT JOIN store_seen s ON s.producer = p.producer
WHERE p.role = 'rank' AND p.run_id IS NOT NULL;

CREATE VIEW runs AS
WITH newest AS (
    SELECT run_id, label, min(started_at) OVER (PARTITION BY run_id, label) AS started_at, attempt,
           coalesce(state, 'running') AS state, exit_code, ended_at, coalesce(sets_run, is_primary) AS sets_run
    FROM store_names WHERE role = 'rank' AND run_id IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY run_id, label ORDER BY attempt DESC) = 1
), states AS (
    SELECT run_id, min(started_at) AS created_at, count(*) AS n_labels, max(attempt) + 1 AS n_attempts,
           bool_or(sets_run) AS has_setter, bool_or(state = 'running' AND sets_run) AS is_setter_running,
           max_by(CASE WHEN sets_run THEN state END, CASE WHEN sets_run THEN ended_at END) AS setter_state,
           max_by(CASE WHEN sets_run THEN exit_code END, CASE WHEN sets_run THEN ended_at END) AS setter_exit_code,
           max(CASE WHEN sets_run THEN ended_at END) AS setter_ended_at,
           bool_or(state = 'running') AS is_running, bool_or(state = 'crashed') AS is_crashed,
           bool_or(state = 'failed') AS is_failed, max(exit_code) AS exit_code, max(ended_at) AS ended_at,
           sum(CASE WHEN state IN ('failed', 'crashed') THEN 1 ELSE 0 END) AS n_failed,
           sum(CASE WHEN state = 'running' THEN 1 ELSE 0 END) AS n_running
    FROM newest GROUP BY run_id
), decided AS (
    SELECT run_id, created_at, n_labels, n_attempts, n_failed, n_running,
           CASE WHEN has_setter THEN CASE WHEN is_setter_running THEN 'running' ELSE setter_state END
                WHEN is_running THEN 'running' WHEN is_crashed THEN 'crashed' WHEN is_failed THEN 'failed'
                ELSE 'finished' END AS state,
           CASE WHEN has_setter THEN setter_exit_code ELSE exit_code END AS exit_code,
           CASE WHEN has_setter THEN setter_ended_at ELSE ended_at END AS ended_at
    FROM states
), described AS (
    SELECT * FROM store_runs QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY number DESC, log) = 1
)
SELECT r.run_id, r.project, r.name, r.run_group, r.job_type, r.tags, r.notes, s.state, s.exit_code, s.created_at,
       CASE WHEN s.state <> 'running' THEN s.ended_at END AS ended_at, r.primary_label, s.n_labels, s.n_attempts,
       CAST(s.n_failed AS BIGINT) AS n_failed, CAST(s.n_running AS BIGINT) AS n_running
FROM described r JOIN decided s ON s.run_id = r.run_id;

CREATE VIEW metrics AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.value
FROM store_metrics f JOIN store_names i ON i.producer = f.producer;

CREATE VIEW phases AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.step, f.key AS phase, f.value AS seconds, f.ts
FROM store_phases f JOIN store_names i ON i.producer = f.producer;

CREATE VIEW texts AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.value
FROM store_texts f JOIN store_names i ON i.producer = f.producer;

CREATE VIEW histograms AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.edges, f.counts
FROM store_histograms f JOIN store_names i ON i.producer = f.producer;

CREATE VIEW console AS
SELECT i.run_id, i.label, i.attempt, f.stream, f.line_no, f.seq, f.ts, f.line
FROM store_console f JOIN store_names i ON i.producer = f.producer;

-- Without the run and label of each sample: join by node, time, and device.
CREATE VIEW system_samples AS
SELECT coalesce(i.agent_node, i.node) AS node, f.device, f.key AS name, f.ts, f.value
FROM store_system f JOIN store_names i ON i.producer = f.producer;

CREATE VIEW config AS
WITH own AS (
    SELECT i.run_id, c.key, c.value, c.ts, i.label
    FROM store_config c JOIN store_names i ON i.producer = c.producer WHERE i.is_primary OR i.is_coauthor
    QUALIFY row_number() OVER (PARTITION BY i.run_id, c.key ORDER BY i.is_primary DESC, i.attempt DESC, c.seq DESC) = 1
)
SELECT run_id, key, value, ts, label FROM own;

-- Without the reasons of losses.
CREATE VIEW completeness AS
WITH losses AS (
    SELECT producer, first_seq, last_seq FROM store_losses
    QUALIFY number = max(number) OVER (PARTITION BY producer)
), lost AS (
    SELECT producer, sum(last_seq - first_seq + 1) AS lost, max(last_seq) AS last_seq FROM losses GROUP BY producer
), rejected AS (
    SELECT producer, count(DISTINCT seq) AS n FROM store_events
    WHERE kind = 'quarantined' AND producer IS NOT NULL GROUP BY producer
), counted AS (
    SELECT i.owner, i.run_id, i.label, i.attempt, i.is_unknown,
           coalesce(s.stored, 0) - least(coalesce(r.n, 0), coalesce(s.stored, 0)) AS stored,
           coalesce(l.lost, 0) + least(coalesce(r.n, 0), coalesce(s.stored, 0)) AS lost,
           greatest(coalesce(i.produced, 0), coalesce(s.last_seq + 1, 0), coalesce(l.last_seq + 1, 0)) AS produced
    FROM store_names i LEFT JOIN store_seen s ON s.producer = i.producer LEFT JOIN lost l ON l.producer = i.producer
    LEFT JOIN rejected r ON r.producer = i.producer
    WHERE i.owner_role = 'rank' AND i.run_id IS NOT NULL
)
SELECT run_id, label, attempt, CASE WHEN NOT is_unknown THEN CAST(sum(produced) AS BIGINT) END AS produced,
       CAST(sum(stored) AS BIGINT) AS stored, CAST(sum(lost) AS BIGINT) AS lost,
       CASE WHEN NOT is_unknown THEN CAST(sum(produced - stored - lost) AS BIGINT) END AS pending
FROM counted GROUP BY owner, is_unknown, run_id, label, attempt;
