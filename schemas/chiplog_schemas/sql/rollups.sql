-- Rollups: what queries need of the facts and dimensions at once. They can be computed from the other tables at any time,
-- as here; the index keeps them while it applies, in the same transaction. A change needs a higher ROLLUPS.
CREATE OR REPLACE TABLE base.rollups AS SELECT {version} AS version;

-- The names of each producer. A console has those of its owner. An owner on another node is rejected: a key for one node
-- must not add lines to another node's label. Without an agent's report, the producer's own node counts.
CREATE OR REPLACE TABLE base.identified AS
SELECT p.producer, w.run, r.run_id, w.label, w.attempt, w.rank, p.node, p.is_primary,
       coalesce(p.is_coauthor, false) AS is_coauthor, w.producer AS owner, p.role
FROM base.producers p
LEFT JOIN base.producers o ON p.role = 'console' AND o.producer = p.owner AND o.role = 'rank'
    AND coalesce(o.agent_node, o.node) = coalesce(p.agent_node, p.node)
JOIN base.producers w ON w.producer = coalesce(o.producer, p.producer)
LEFT JOIN base.runs r ON r.run = w.run;

-- Each flush appends a row for each of its series; at times the rows of a series become one.
CREATE OR REPLACE TABLE base.metric_series AS {metric_series} ORDER BY key, producer;
CREATE OR REPLACE TABLE base.phase_series AS {phase_series} ORDER BY key, producer;

-- Curves at a lower resolution, of the facts in sorted pieces: recent rows are read as they are. `step` is the first step
-- of a bucket of `width` steps. A bucket has several rows if its facts were sorted at several times.
CREATE OR REPLACE TABLE base.metric_levels AS {metric_levels} ORDER BY width, key, producer, step;
