-- Curves with about as many points as are asked for, whatever their length: at most so many buckets of equally many steps,
-- with minimum, maximum and mean, which leave NaN out. Long curves are read from base.metric_levels and the recent rows.
-- run: a run ID. keys: a name, or a list of names. points: for each series.
CREATE OR REPLACE MACRO downsample(run, keys, points := 1000) AS TABLE
WITH wanted AS (
    SELECT s.producer, s.key, min(s.first_step) AS first_step, max(s.last_step) AS last_step
    FROM base.metric_series s JOIN base.identified i ON i.producer = s.producer JOIN base.names n ON n.id = s.key
    -- The text '[a' is a name: only its type tells it from a list.
    WHERE i.run_id = run AND list_contains(
        CASE WHEN typeof(keys) = 'VARCHAR' THEN [keys::VARCHAR] ELSE TRY_CAST(keys AS VARCHAR[]) END, n.name
    )
    GROUP BY s.producer, s.key
), grid AS (
    SELECT level, level * ((steps + level - 1) // level) AS width FROM (
        SELECT steps, CASE WHEN steps >= 512 THEN 256 WHEN steps >= 32 THEN 16 ELSE 1 END AS level FROM (
            -- At most 2^40 steps in a bucket: any run has fewer, and no sum of steps overflows.
            SELECT least(ceil(span / greatest(points, 1)), 1099511627776)::BIGINT AS steps
            FROM (SELECT max(last_step)::HUGEINT - min(first_step) + 1 AS span FROM wanted)
        )
    )
), parts AS (
    SELECT f.producer, f.key, f.step, f.ts, (NOT isnan(f.value))::BIGINT AS n_numbers, nullif(f.value, 'nan') AS sum,
           nullif(f.value, 'nan') AS min, nullif(f.value, 'nan') AS max
    FROM base.metrics f JOIN (FROM wanted WHERE (SELECT level FROM grid) = 1) w ON w.producer = f.producer AND w.key = f.key
    UNION ALL
    SELECT f.producer, f.key, f.step, f.ts, (NOT isnan(f.value))::BIGINT, nullif(f.value, 'nan'), nullif(f.value, 'nan'),
           nullif(f.value, 'nan')
    FROM base.metrics_recent f JOIN wanted w ON w.producer = f.producer AND w.key = f.key
    UNION ALL
    SELECT l.producer, l.key, l.step, l.ts, l.n_numbers, l.sum, l.min, l.max
    FROM base.metric_levels l JOIN wanted w ON w.producer = l.producer AND w.key = l.key
    WHERE l.width = (SELECT level FROM grid)
), buckets AS (
    SELECT producer, key, first - (first % width + width) % width AS step, min(ts) AS ts, sum(n_numbers)::BIGINT AS n,
           min(min) AS min, max(max) AS max, sum(sum) / nullif(sum(n_numbers), 0) AS mean
    -- The bucket of a step next to the least integer would begin before it.
    FROM (SELECT *, greatest(step, -9000000000000000000) AS first FROM parts), grid GROUP BY ALL
)
SELECT i.run_id, i.label, i.attempt, i.rank, n.name AS key, b.step, b.ts, b.n, b.min, b.mean, b.max
FROM buckets b JOIN base.identified i ON i.producer = b.producer JOIN base.names n ON n.id = b.key;
