-- The table macros that users call. Names, parameters and columns are a contract. The index replaces every macro at each
-- start, as it does with views.

-- Per run, label, metric and step: the value that counts, which is the last one of the newest attempt. Attempt and seq
-- are combined into one number, because a pair takes twice as long.
CREATE OR REPLACE VIEW base.series AS
SELECT p.run_id, p.label, n.name AS metric, f.step, max(p.attempt) AS attempt, arg_max(p.rank, p.attempt) AS rank,
       arg_max(f.ts, p.attempt * 9223372036854775808 + f.seq) AS ts,
       arg_max(f.value, p.attempt * 9223372036854775808 + f.seq) AS value  -- safeguard: newest-value-of-step
FROM base.metric_facts f JOIN base.label_places p ON p.producer = f.producer JOIN base.names n ON n.id = f.key
GROUP BY p.run_id, p.label, n.name, f.step;

-- All values of a metric, also of steps that were done again.
CREATE OR REPLACE MACRO history(run, key) AS TABLE
SELECT m.label, m.attempt, m.rank, m.step, m.seq, m.ts, m.value FROM metrics m
WHERE m.run_id = run AND m.key = key ORDER BY m.label, m.attempt, m.step, m.seq;

-- The exponential moving average of a metric per label: y(0) = x(0), y(t) = alpha x(t) + (1 - alpha) y(t - 1), as pandas
-- has it with adjust=False. NaN and infinite values change nothing.
-- In blocks of steps this is a sum with growing weights. A block is so long that all earlier blocks but the last one
-- weigh less than e^-500, which is nothing in a DOUBLE, and so short that no weight overflows.
CREATE OR REPLACE MACRO ema(run, key, alpha) AS TABLE
WITH weighed AS (
    SELECT label, rank, step, ts, value,
           CASE WHEN alpha::DOUBLE > 0 AND alpha::DOUBLE <= 1 THEN greatest(1 - alpha::DOUBLE, 1e-200)
                ELSE error('ema: alpha ' || coalesce(alpha::VARCHAR, 'NULL') || ' must be in (0, 1]') END AS keep
    FROM base.series WHERE run_id = run AND metric = key
), numbered AS (
    SELECT *, greatest(floor(-500 / ln(least(keep, 1 - 1e-9))), 1)::BIGINT AS n_block,
           count(*) FILTER (isfinite(value)) OVER (PARTITION BY label ORDER BY step) - 1 AS t
    FROM weighed
), summed AS (
    SELECT *, t // n_block AS block, t % n_block AS j,
           pow(keep, j) * sum(CASE WHEN t = 0 THEN 1 ELSE 1 - keep END * value / pow(keep, j)) FILTER (isfinite(value))
               OVER (PARTITION BY label, t // n_block ORDER BY step) AS own
    FROM numbered WHERE t >= 0
)
SELECT s.label, s.rank, s.step, s.ts, s.value,
       s.own + coalesce(pow(s.keep, s.j + 1) * b.own, 0) AS ema  -- safeguard: average-beyond-its-block
FROM summed s LEFT JOIN (
    SELECT label, block, arg_max(own, step) AS own FROM summed GROUP BY label, block
) b ON b.label = s.label AND b.block = s.block - 1
ORDER BY s.label, s.step;

-- Every change of the config of a run: by the primary and by its parent.
CREATE OR REPLACE MACRO config_history(run) AS TABLE
SELECT key, value::JSON AS value, previous::JSON AS previous, ts, label, attempt FROM (
    SELECT c.key, c.value, lag(c.value) OVER writes AS previous, c.ts, c.seq, i.label, i.attempt, i.is_primary
    FROM base.config c JOIN base.identified i ON i.producer = c.producer
    WHERE i.run_id = run AND (i.is_primary OR i.is_coauthor)
    WINDOW writes AS (PARTITION BY c.key ORDER BY i.is_primary, i.attempt, c.seq)
) WHERE value IS DISTINCT FROM previous ORDER BY key, is_primary, attempt, seq;

-- Two runs beside each other: the config keys that differ, one value per key of run_summary, and at each step that both
-- runs have the mean over the labels of each metric.
CREATE OR REPLACE MACRO compare(run_a, run_b) AS TABLE
WITH pairs AS (
    SELECT 'config' AS kind, key, NULL::BIGINT AS step, a, b FROM (
        SELECT key, any_value(value) FILTER (run_id = run_a) AS a, any_value(value) FILTER (run_id = run_b) AS b
        FROM config WHERE run_id IN (run_a, run_b) GROUP BY key
    ) WHERE a IS DISTINCT FROM b
    UNION ALL
    SELECT 'summary', key, NULL, any_value(value) FILTER (run_id = run_a), any_value(value) FILTER (run_id = run_b)
    FROM run_summary WHERE run_id IN (run_a, run_b) GROUP BY key
    UNION ALL
    SELECT 'metric', metric, step, to_json(a), to_json(b) FROM (
        SELECT metric, step, avg(value) FILTER (run_id = run_a) AS a, avg(value) FILTER (run_id = run_b) AS b
        FROM base.series WHERE run_id IN (run_a, run_b) AND isfinite(value) GROUP BY metric, step
    ) WHERE a IS NOT NULL AND b IS NOT NULL
)
SELECT kind, key, step, a, b, TRY_CAST(b AS DOUBLE) - TRY_CAST(a AS DOUBLE) AS change
FROM pairs ORDER BY kind, key, step;

-- One row per run: what it is, and the chosen keys of its config and of run_summary.
CREATE OR REPLACE MACRO pivot_runs(config_keys, metric_keys) AS TABLE
SELECT r.run_id, r.project, r.name, r.run_group, r.job_type, r.tags, r.state, r.created_at, r.ended_at,
       coalesce(c.config, MAP {}::MAP(VARCHAR, JSON)) AS config,
       coalesce(s.summary, MAP {}::MAP(VARCHAR, JSON)) AS summary
FROM runs r LEFT JOIN (
    SELECT run_id, map_from_entries(list((key, value) ORDER BY key)) AS config
    FROM config WHERE list_contains(config_keys, key) GROUP BY run_id
) c ON c.run_id = r.run_id LEFT JOIN (
    SELECT run_id, map_from_entries(list((key, value) ORDER BY key)) AS summary
    FROM run_summary WHERE list_contains(metric_keys, key) GROUP BY run_id
) s ON s.run_id = r.run_id;

-- One row per label and step: the chosen metrics.
CREATE OR REPLACE MACRO pivot_steps(run, keys) AS TABLE
SELECT label, arg_max(rank, attempt) AS rank, step, map_from_entries(list_sort(list((metric, value)))) AS metrics
FROM base.series WHERE run_id = run AND list_contains(keys, metric) GROUP BY label, step ORDER BY label, step;

-- The views stragglers and data_wait of a run, for a range of steps, both ends included.
CREATE OR REPLACE MACRO stragglers_between(run, first_step, last_step) AS TABLE
SELECT s.* EXCLUDE (run_id) FROM base.stragglers_in(first_step, last_step) s WHERE s.run_id = run;

CREATE OR REPLACE MACRO data_wait_between(run, first_step, last_step) AS TABLE
SELECT w.* EXCLUDE (run_id) FROM base.data_wait_in(first_step, last_step) w WHERE w.run_id = run;

-- By how much each label exceeds the median of each step in a phase, or in the phase `outside`, which is the time in none.
CREATE OR REPLACE MACRO excess_between(run, phase, first_step, last_step) AS TABLE
SELECT l.label, l.rank, c.step, c.seconds, c.typical AS typical_s, c.seconds - c.typical AS excess_s
FROM base.compared_with_outside(first_step, last_step) c JOIN base.phase_names n ON n.id = c.key
JOIN base.labels_by_place l ON l.run_id = c.run_id AND l.place = c.place
WHERE c.run_id = run AND n.name = phase;

-- What happened around an event of a GPU: a minute before and after it, the events of its node, and the samples of the GPU
-- and of the host, with the label that used the GPU and the last step that this had begun. Columns of the views that it
-- reads are qualified: DuckDB would take a bare one for a parameter.
CREATE OR REPLACE MACRO gpu_event_context(node, device, ts) AS TABLE
WITH events_near AS (
    SELECT e.ts, 'event' AS source, e.kind AS name, e.device, e.xid::DOUBLE AS value, e.level, e.message, e.run_id, e.label,
           e.rank, e.step
    FROM gpu_events e WHERE e.node = node
    UNION ALL
    SELECT e.ts, 'event', e.kind, NULL, NULL, e.level, e.message, e.run_id, e.label, NULL, NULL
    FROM base.told e WHERE e.node = node AND e.kind <> 'device_stale' AND NOT starts_with(e.kind, 'gpu.')
), samples_near AS (
    SELECT s.ts, 'sample' AS source, s.name, s.device, s.value, c.run_id, c.producer, c.label, c.rank
    FROM system_samples s LEFT JOIN base.claims c
        ON c.node = s.node AND c.device = s.device AND s.ts BETWEEN c.started_at AND c.left_at
    WHERE s.node = node AND s.device IN (device, '')
      AND s.ts BETWEEN ts::TIMESTAMP - INTERVAL 60 SECOND AND ts::TIMESTAMP + INTERVAL 60 SECOND
), steps AS (
    SELECT b.producer, b.step, base.step_order(b.ts, b.step) AS place
    FROM base.begun_steps b JOIN (
        SELECT DISTINCT c.producer FROM base.claims c WHERE c.node = node AND c.device = device
    ) u ON u.producer = b.producer
), near AS (
    FROM events_near
    UNION ALL
    SELECT s.ts, s.source, s.name, s.device, s.value, NULL, NULL, s.run_id, s.label, s.rank, b.step
    FROM samples_near s ASOF LEFT JOIN steps b
        ON b.producer = s.producer AND base.step_order(s.ts, 9223372036854775807) >= b.place
)
SELECT n.ts, (epoch_us(n.ts) - epoch_us(ts::TIMESTAMP)) / 1e6 AS offset_s, n.source, n.name, n.device, n.value, n.level,
       n.message, n.run_id, n.label, n.rank, n.step
FROM near n WHERE n.ts BETWEEN ts::TIMESTAMP - INTERVAL 60 SECOND AND ts::TIMESTAMP + INTERVAL 60 SECOND
ORDER BY n.ts, n.source, n.name, n.device, n.run_id, n.label;

-- The stored table that each label logged at a step: of its newest attempt there the last one, or the last list of them.
-- Both windows begin with run, key and step, so that filters on these are applied to the rows below them.
CREATE OR REPLACE VIEW base.tables_of_steps AS
WITH newest AS (
    SELECT i.run_id, n.name AS key, f.step, i.label, f.seq, f.sha256, f.bytes
    FROM base.media f JOIN base.identified i ON i.producer = f.producer JOIN base.names n ON n.id = f.key
    WHERE f.kind = 'table' AND i.run_id IS NOT NULL
    -- safeguard: newest-table-of-step
    QUALIFY i.attempt = max(i.attempt) OVER (PARTITION BY i.run_id, n.name, f.step, i.label)
        AND f.seq = max(f.seq) OVER (
            PARTITION BY i.run_id, n.name, f.step, f.producer, f.metadata->>'item', f.metadata->>'row'
        )
)
SELECT run_id, key, step, label, seq, sha256
FROM newest SEMI JOIN base.stored s ON s.sha256 = newest.sha256 AND s.bytes = newest.bytes;

-- read_parquet takes no subquery, so execute.py writes these rows into a variable for a query that names media_table.
CREATE OR REPLACE MACRO base.tables_at(run, at_key, at_step) AS
list_filter(getvariable('media_tables'), lambda m:
    m['run_id'] = run::VARCHAR AND m['key'] = at_key::VARCHAR AND m['step'] = at_step::BIGINT);

-- Rows of logged tables. The column with the file has a name that no logged table has.
CREATE OR REPLACE MACRO media_table(run, key, step) AS TABLE
SELECT m.label, t.* EXCLUDE ("chiplog file")
FROM read_parquet(
    coalesce(nullif(list_distinct(list_transform(base.tables_at(run, key, step), lambda m: m['path'])), []), error(concat(
        'media_table: no table ', key, ' of run ', run, ' at step ', step, ' is stored; ',
        'see run_id, key, step and is_stored of the view media'
    ))),
    union_by_name := true, hive_partitioning := false, filename := 'chiplog file'
) t JOIN (SELECT unnest(base.tables_at(run, key, step), max_depth := 2)) m ON right(t."chiplog file", 64) = m.sha256
ORDER BY m.label, m.seq, t.file_row_number;
