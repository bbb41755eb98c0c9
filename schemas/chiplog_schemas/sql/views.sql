-- What users see. Names and columns are a contract; each statement is replaced at every start of the index.
-- Joins to the dimensions cost a millisecond or two and let names change without touching a fact.

-- Whose label a producer's events belong to: its own, a console's that of its owner. An owner on another node is not
-- believed: whoever speaks for one node must not put lines into another's.
CREATE OR REPLACE VIEW base.identified AS
SELECT p.producer, r.run_id, w.label, w.attempt, w.rank, p.node, w.run, p.is_primary, w.producer AS owner
FROM base.producers p
LEFT JOIN base.producers o ON p.role = 'console' AND o.producer = p.owner AND o.node = p.node AND o.role = 'rank'
JOIN base.producers w ON w.producer = coalesce(o.producer, p.producer)
LEFT JOIN base.runs r ON r.run = w.run;

CREATE OR REPLACE VIEW base.seen AS
SELECT producer, sum(last_seq - first_seq + 1)::BIGINT AS stored, max(last_seq) AS last_seq, max(seen_at) AS seen_at
FROM base.intervals GROUP BY producer;

CREATE OR REPLACE VIEW labels AS
SELECT r.run_id, p.label, p.attempt, p.is_primary, p.job_type, p.rank, p.local_rank, p.world_size, p.node, p.pid, p.gpus,
       coalesce(p.state, 'running') AS state, p.exit_code, p.exit_signal, p.reason,
       p.started_at, s.seen_at AS last_seen_at, p.ended_at
FROM base.producers p JOIN base.runs r ON r.run = p.run LEFT JOIN base.seen s ON s.producer = p.producer
WHERE p.role = 'rank';

-- Of each label the newest attempt, and whether the run's state follows it: as it said, else if it is the primary.
CREATE OR REPLACE VIEW base.newest AS
SELECT p.run, p.label, coalesce(p.state, 'running') AS state, p.exit_code, p.ended_at,
       coalesce(p.sets_run, p.is_primary) AS sets_run
FROM base.producers p WHERE p.role = 'rank' AND p.run IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY p.run, p.label ORDER BY p.attempt DESC) = 1;

-- A run runs while a label that sets its state does; then the last of them to end decides. Without any, the worst does.
CREATE OR REPLACE VIEW base.run_states AS
SELECT run,
       CASE WHEN bool_or(sets_run) THEN
                CASE WHEN bool_or(state = 'running') FILTER (sets_run) THEN 'running'
                     ELSE arg_max(state, ended_at) FILTER (sets_run) END
            WHEN bool_or(state = 'running') THEN 'running' WHEN bool_or(state = 'crashed') THEN 'crashed'
            WHEN bool_or(state = 'failed') THEN 'failed' ELSE 'finished' END AS state,
       CASE WHEN bool_or(sets_run) THEN arg_max(exit_code, ended_at) FILTER (sets_run)
            ELSE max(exit_code) END AS exit_code,
       CASE WHEN bool_or(sets_run) THEN max(ended_at) FILTER (sets_run) ELSE max(ended_at) END AS ended_at
FROM base.newest GROUP BY run;

CREATE OR REPLACE VIEW runs AS
SELECT r.run_id, r.project, r.name, r.run_group, r.job_type, r.tags, r.notes,
       s.state, s.exit_code, min(l.started_at) AS created_at,
       CASE WHEN s.state <> 'running' THEN s.ended_at END AS ended_at,
       r.primary_label, count(DISTINCT l.label) AS n_labels, max(l.attempt) + 1 AS n_attempts
FROM base.runs r JOIN base.run_states s ON s.run = r.run JOIN labels l ON l.run_id = r.run_id
GROUP BY ALL;

CREATE OR REPLACE VIEW metrics AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.value
FROM base.metrics f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW texts AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.value
FROM base.texts f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW histograms AS
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, f.step, f.seq, f.ts, f.edges, f.counts
FROM base.histograms f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

CREATE OR REPLACE VIEW phases AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.step, n.name AS phase, f.value AS seconds
FROM base.phases f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key;

-- For each step: how far the labels lie apart. `slowest_label` has the largest value, of equals the first name; a NaN
-- is slower than nothing.
CREATE OR REPLACE VIEW step_skew AS
SELECT run_id, key, step, count(DISTINCT label) AS n_labels, min(value) AS min, median(value) AS median,
       max(value) AS max, first(label ORDER BY isnan(value), value DESC, label) AS slowest_label
FROM metrics GROUP BY run_id, key, step;

CREATE OR REPLACE VIEW system_samples AS
SELECT p.node, d.name AS device, n.name AS name, s.ts, s.value
FROM base.system s JOIN base.producers p ON p.producer = s.producer
JOIN base.names d ON d.id = s.device JOIN base.names n ON n.id = s.key;

-- When an attempt had its label: until its end, at the latest until the next one's start. One that vanished is found
-- dead when the next may run already, and a sample belongs to a label once.
CREATE OR REPLACE VIEW base.tenures AS
SELECT p.*, least(
    coalesce(p.ended_at, TIMESTAMP 'infinity'),
    lead(p.started_at) OVER (PARTITION BY p.run, p.label ORDER BY p.started_at, p.attempt) - INTERVAL 1 MICROSECOND
) AS left_at
FROM base.producers p WHERE p.role = 'rank' AND p.run IS NOT NULL;

-- Who claims which device of a node, and when: a label its GPUs and its own process.
CREATE OR REPLACE VIEW base.claims AS
SELECT p.producer, r.run_id, p.label, p.rank, p.node, unnest(list_append(coalesce(p.gpus, []), 'pid:' || p.pid)) AS device,
       p.started_at, p.left_at
FROM base.tenures p JOIN base.runs r ON r.run = p.run;

-- Per run and node the label that stands for the node: its primary, else its lowest rank, else its first.
CREATE OR REPLACE VIEW base.keepers AS
SELECT r.run_id, p.label, p.rank, p.node, p.started_at, p.left_at
FROM base.tenures p JOIN base.runs r ON r.run = p.run
QUALIFY p.label = first_value(p.label) OVER (
    PARTITION BY p.run, p.node ORDER BY p.is_primary DESC, coalesce(p.rank, 2147483647), p.producer
);

CREATE OR REPLACE VIEW system AS
SELECT c.run_id, c.label, c.rank, s.node, s.device, s.name, s.ts, s.value
FROM system_samples s JOIN base.claims c
  ON c.node = s.node AND c.device = s.device AND s.ts >= c.started_at AND s.ts <= c.left_at
UNION ALL
SELECT k.run_id, k.label, k.rank, s.node, s.device, s.name, s.ts, s.value
FROM (
    SELECT * FROM system_samples s WHERE NOT starts_with(s.device, 'pid:')
) s JOIN base.keepers k ON k.node = s.node AND s.ts >= k.started_at AND s.ts <= k.left_at
WHERE NOT EXISTS (
    SELECT 1 FROM base.claims c
    WHERE c.node = s.node AND c.device = s.device AND s.ts >= c.started_at AND s.ts <= c.left_at
);

CREATE OR REPLACE VIEW console AS
SELECT i.run_id, i.label, i.attempt, f.stream, f.line_no, f.seq, f.ts, f.line
FROM base.console f JOIN base.identified i ON i.producer = f.producer;

-- Only what the primary wrote, and of that the last word; what others wrote is in base.config and refused in `events`.
CREATE OR REPLACE VIEW config AS
SELECT i.run_id, c.key, c.value::JSON AS value, c.ts, i.label
FROM base.config c JOIN base.identified i ON i.producer = c.producer
WHERE i.is_primary
QUALIFY row_number() OVER (PARTITION BY i.run_id, c.key ORDER BY i.attempt DESC, c.seq DESC) = 1;

-- What the user set; for a metric that nobody set, its last value (by attempt and seq).
CREATE OR REPLACE VIEW summary AS
WITH said AS (
    SELECT i.run_id, i.label, s.key, s.value::JSON AS value
    FROM base.summary s JOIN base.identified i ON i.producer = s.producer
    QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label, s.key ORDER BY i.attempt DESC, s.seq DESC) = 1
), last_of_producer AS (
    SELECT producer, key, arg_max(value, seq) AS value FROM base.metrics GROUP BY producer, key
), last_values AS (
    SELECT i.run_id, i.label, n.name AS key,
           CASE WHEN isfinite(arg_max(f.value, i.attempt)) THEN to_json(arg_max(f.value, i.attempt))
                ELSE to_json(arg_max(f.value, i.attempt)::VARCHAR) END AS value
    FROM last_of_producer f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key
    GROUP BY i.run_id, i.label, n.name
)
SELECT run_id, label, key, value FROM said
UNION ALL
SELECT run_id, label, key, value FROM last_values l
WHERE NOT EXISTS (SELECT 1 FROM said s WHERE s.run_id = l.run_id AND s.label = l.label AND s.key = l.key);

-- Every save() of a primary, and when the content arrived: perhaps before, for another run.
CREATE OR REPLACE VIEW base.saves AS
SELECT i.run_id, i.label, i.attempt, i.node, f.seq, f.ts, f.path, f.bytes, f.sha256, s.stored_at
FROM base.files f JOIN base.identified i ON i.producer = f.producer
LEFT JOIN (SELECT sha256, bytes, min(ts) AS stored_at FROM base.stored GROUP BY ALL) s
  ON s.sha256 = f.sha256 AND s.bytes = f.bytes
WHERE i.is_primary AND i.run_id IS NOT NULL;

-- Of each path what was saved last.
CREATE OR REPLACE VIEW files AS
SELECT run_id, path, bytes, sha256, ts FROM base.saves
QUALIFY row_number() OVER (PARTITION BY run_id, path ORDER BY attempt DESC, seq DESC, ts DESC) = 1;

CREATE OR REPLACE VIEW events AS
SELECT i.run_id, i.label, i.attempt, i.node, e.seq, e.ts, e.kind, e.level, e.message, e.body::JSON AS body
FROM base.events e LEFT JOIN base.identified i ON i.producer = e.producer
UNION ALL
SELECT run_id, label, attempt, node, seq, greatest(ts, stored_at), 'file_stored', 'info',
       'file ' || path || ' arrived whole, ' || bytes || ' bytes',
       json_object('path', path, 'bytes', bytes, 'sha256', sha256)
FROM base.saves WHERE stored_at IS NOT NULL;

-- produced = stored + lost + pending, always: pending is what is known to exist and has not come yet. A label's events
-- are its own and those of its consoles.
CREATE OR REPLACE VIEW completeness AS
WITH lost AS (
    SELECT producer, sum(last_seq - first_seq + 1)::BIGINT AS lost, max(last_seq) AS last_seq,
           string_agg(DISTINCT reason, '; ' ORDER BY reason) AS reasons
    FROM base.losses GROUP BY producer
), counted AS (
    SELECT i.owner, i.run_id, i.label, i.attempt, coalesce(s.stored, 0) AS stored, coalesce(l.lost, 0) AS lost, l.reasons,
           greatest(coalesce(p.produced, 0), coalesce(s.last_seq + 1, 0), coalesce(l.last_seq + 1, 0)) AS produced
    FROM base.producers p JOIN base.identified i ON i.producer = p.producer JOIN base.producers o ON o.producer = i.owner
    LEFT JOIN base.seen s ON s.producer = p.producer LEFT JOIN lost l ON l.producer = p.producer
    WHERE o.role = 'rank' AND i.run_id IS NOT NULL
)
SELECT run_id, label, attempt, sum(produced)::BIGINT AS produced, sum(stored)::BIGINT AS stored, sum(lost)::BIGINT AS lost,
       sum(produced - stored - lost)::BIGINT AS pending, string_agg(reasons, '; ' ORDER BY reasons) AS reasons
FROM counted GROUP BY owner, run_id, label, attempt;
