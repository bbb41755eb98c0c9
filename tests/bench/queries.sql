-- The queries of bench_store.py: for each its name, its goal in milliseconds, its text for users, and below `by hand` the
-- best text on the inner tables. The data is written by large_store.py; views by step are asked for one key.

-- a view without rows: 7
SELECT * FROM labels WHERE run_id = 'none';
-- by hand
SELECT 1;

-- one series of 5,000 points: 10
SELECT step, ts, value FROM metrics WHERE run_id = 'large-1' AND label = 'rank17' AND key = 'train/metric_7';
-- by hand
SELECT step, ts, value FROM base.metrics WHERE key = 8 AND producer = (SELECT producer FROM base.identified WHERE run_id = 'large-1' AND label = 'rank17');

-- the last 100 steps of a series: 8
SELECT step, value FROM metrics WHERE run_id = 'large-1' AND label = 'rank17' AND key = 'train/metric_7' AND step >= 4900;
-- by hand
SELECT step, value FROM base.metrics WHERE key = 8 AND step >= 4900 AND producer = (SELECT producer FROM base.identified WHERE run_id = 'large-1' AND label = 'rank17');

-- minimum, median, maximum over 64 labels by step: 30
SELECT step, min(value), median(value), max(value) FROM metrics WHERE run_id = 'large-1' AND key = 'train/metric_7' GROUP BY step;
-- by hand
SELECT step, min(value), median(value), max(value) FROM base.metrics WHERE key = 8 AND producer BETWEEN (SELECT min(producer) FROM base.identified WHERE run_id = 'large-1') AND (SELECT max(producer) FROM base.identified WHERE run_id = 'large-1') GROUP BY step;

-- 1,000 points of a series of 50,000 steps: 8
SELECT step, min, mean, max FROM downsample('long', 'loss') WHERE label = 'rank17';
-- by hand
SELECT step // 50, min(value), avg(value), max(value) FROM base.metrics WHERE key = (SELECT id FROM base.names WHERE name = 'loss') AND producer = (SELECT producer FROM base.identified WHERE run_id = 'long' AND label = 'rank17') GROUP BY 1;

-- the same of 64 ranks at once: 40
SELECT label, step, min, mean, max FROM downsample('long', 'loss');
-- by hand
SELECT producer, step // 50, min(value), avg(value), max(value) FROM base.metrics WHERE key = (SELECT id FROM base.names WHERE name = 'loss') AND producer BETWEEN (SELECT min(producer) FROM base.identified WHERE run_id = 'long') AND (SELECT max(producer) FROM base.identified WHERE run_id = 'long') GROUP BY 1, 2;

-- summary of a run, the latest value of every key and label: 15
SELECT * FROM summary WHERE run_id = 'large-1';
-- by hand
SELECT producer, key, arg_max(last, last_seq) FROM base.metric_series WHERE producer IN (SELECT producer FROM base.identified WHERE run_id = 'large-1') GROUP BY ALL;

-- run_summary of a run: 15
SELECT * FROM run_summary WHERE run_id = 'large-1';
-- by hand
SELECT key, arg_max(last, last_seq) FROM base.metric_series WHERE producer = (SELECT producer FROM base.identified WHERE run_id = 'large-1' AND is_primary) GROUP BY ALL;

-- rank_progress of a run: 15
SELECT * FROM rank_progress WHERE run_id = 'large-1';
-- by hand
SELECT producer, max(last_step) FROM base.metric_series WHERE producer IN (SELECT producer FROM base.identified WHERE run_id = 'large-1') GROUP BY ALL;

-- step_skew of a run: 60
SELECT * FROM step_skew WHERE run_id = 'large-1' AND key = 'train/metric_7';
-- by hand
SELECT step, count(*), min(value), median(value), max(value), arg_max(producer, value) FROM base.metrics WHERE key = 8 AND producer BETWEEN (SELECT min(producer) FROM base.identified WHERE run_id = 'large-1') AND (SELECT max(producer) FROM base.identified WHERE run_id = 'large-1') GROUP BY step;

-- stragglers of a run: 60
SELECT * FROM stragglers WHERE run_id = 'large-1';
-- by hand
SELECT key, step, median(value), max(value), arg_max(producer, value) FROM base.phase_facts WHERE producer BETWEEN (SELECT min(producer) FROM base.identified WHERE run_id = 'large-1') AND (SELECT max(producer) FROM base.identified WHERE run_id = 'large-1') GROUP BY ALL;

-- data_wait of a run: 60
SELECT * FROM data_wait WHERE run_id = 'large-1';
-- by hand
SELECT producer, key, sum(value), median(value) FROM base.phase_facts WHERE key IN (SELECT id FROM base.names WHERE name IN ('data', 'step')) AND producer IN (SELECT producer FROM base.identified WHERE run_id = 'large-1') GROUP BY ALL;

-- restarts of a run that had none: 60
SELECT * FROM restarts WHERE run_id = 'large-1';
-- by hand
SELECT 1;

-- 50 of 10,000 runs, the newest: 20
SELECT * FROM runs ORDER BY created_at DESC LIMIT 50;
-- by hand
SELECT run, min(started_at) AS begun, max(ended_at), count(*) FROM base.producers WHERE role = 'rank' GROUP BY run ORDER BY begun DESC LIMIT 50;

-- the same with two keys of config and two of the summary, as `chiplog runs` asks: 20
WITH page AS MATERIALIZED (FROM runs ORDER BY created_at DESC LIMIT 50), of_config AS (SELECT run_id, map_from_entries(list((key, value::VARCHAR))) AS values FROM config WHERE key IN ('lr', 'model') AND run_id IN (SELECT run_id FROM page) GROUP BY run_id), of_summary AS (SELECT run_id, map_from_entries(list((key, value::VARCHAR))) AS values FROM run_summary WHERE key IN ('loss', 'accuracy') AND run_id IN (SELECT run_id FROM page) GROUP BY run_id) SELECT r.*, c.values['lr'] AS lr, c.values['model'] AS model, s.values['loss'] AS loss, s.values['accuracy'] AS accuracy FROM page r LEFT JOIN of_config c ON c.run_id = r.run_id LEFT JOIN of_summary s ON s.run_id = r.run_id ORDER BY r.created_at DESC;
-- by hand
SELECT run, min(started_at) AS begun, max(ended_at), count(*) FROM base.producers WHERE role = 'rank' GROUP BY run ORDER BY begun DESC LIMIT 50;

-- GPU utilisation joined with the steps of one rank: 60
SELECT m.step, avg(s.value) FROM metrics m JOIN system s ON s.run_id = m.run_id AND s.label = m.label AND s.ts >= m.ts AND s.ts < m.ts + INTERVAL 1 SECOND WHERE m.run_id = 'large-1' AND m.key = 'train/metric_7' AND m.label = 'rank3' AND s.name = 'gpu_util' GROUP BY m.step;
-- by hand
SELECT m.step, avg(s.value) FROM base.metrics m JOIN base.system_facts s ON s.producer = m.producer AND s.ts >= m.ts AND s.ts < m.ts + INTERVAL 1 SECOND WHERE m.key = 8 AND m.producer = (SELECT producer FROM base.identified WHERE run_id = 'large-1' AND label = 'rank3') AND s.key = (SELECT id FROM base.names WHERE name = 'gpu_util') GROUP BY m.step;
