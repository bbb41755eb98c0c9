-- Views over the tables of a store, for engines that have none of chiplog's own. In DuckDB's SQL; sqlglot writes it for the
-- others, and engine_views.py what sqlglot lacks: epoch_us(), median(), json_text(), json_list(), hashes_by_key() and
-- taken_over(). Names and columns are those of the views of a collector; JSON is text. Engines plan a view again at each
-- reference to it, so a view reads others once where it can. Tables with a producer and a seq have each event once here.

-- Runs may be in several logs. All readers then decide alike, by the rules of spanning/spread_runs.py.
CREATE VIEW store_rows_of_runs AS
SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY log, run_id ORDER BY number DESC) AS age FROM store_runs
) aged WHERE age = 1;

-- One row of each producer: of a rank in several logs that of the log that knows most of its end.
CREATE VIEW store_known AS
WITH aged AS (
    SELECT *, row_number() OVER (PARTITION BY log, producer ORDER BY number DESC) AS age FROM store_producers
), spread AS (
    SELECT run_id FROM store_rows_of_runs GROUP BY run_id HAVING count(*) > 1
), seen AS (
    SELECT log, producer, max(seen_at) AS seen_at FROM store_intervals GROUP BY log, producer
), placed AS (
    SELECT p.*, s.seen_at, p.role = 'rank' AND p.label IS NOT NULL AND r.run_id IS NOT NULL AS is_spread,
           coalesce(epoch_us(p.started_at), 0) AS since, coalesce(epoch_us(p.ended_at), 0) AS until
    FROM aged p LEFT JOIN spread r ON r.run_id = p.run_id
    LEFT JOIN seen s ON s.log = p.log AND s.producer = p.producer WHERE p.age = 1
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY producer
        ORDER BY CASE WHEN is_spread THEN 0 ELSE 1 END, CASE WHEN is_spread AND is_presumed THEN 1 ELSE 0 END,
                 CASE WHEN state IS NULL THEN 1 ELSE 0 END, CASE WHEN is_spread THEN seen_at END DESC NULLS LAST,
                 CASE WHEN NOT is_spread THEN number END DESC NULLS LAST, log) AS knowledge
    FROM placed
)
SELECT * FROM ranked WHERE knowledge = 1;

-- The row of each run whose label is primary: of several logs, the claim that was not taken over.
CREATE VIEW store_primaries AS
WITH holders AS (
    SELECT run_id, label, min(since) AS since, min(CASE WHEN fallback THEN 1 ELSE 0 END) AS is_fallback,
           CASE WHEN count(*) = count(state) THEN max(until) END AS until
    FROM store_known WHERE is_spread GROUP BY run_id, label
), claims AS (
    SELECT r.run_id, r.log, r.primary_label AS label, r.primary_launch AS launch, coalesce(r.primary_restart, 0) AS restart,
           coalesce(h.since, 0) AS since, CASE WHEN h.label IS NULL THEN 0 ELSE h.until END AS until,
           row_number() OVER (PARTITION BY r.run_id ORDER BY coalesce(h.is_fallback, 0), coalesce(h.since, 0),
                              coalesce(r.primary_restart, 0), r.log) AS n
    FROM store_rows_of_runs r LEFT JOIN holders h ON h.run_id = r.run_id AND h.label = r.primary_label
    WHERE r.primary_label IS NOT NULL
), second AS (SELECT * FROM taken_over(claims)), third AS (SELECT * FROM taken_over(second)
), fourth AS (SELECT * FROM taken_over(third))
SELECT run_id, log, label FROM fourth QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY n) = 1;

-- A console has the names of its rank.
CREATE VIEW store_identities AS
WITH launched AS (
    SELECT *, min(since) OVER (PARTITION BY run_id, label, is_spread, coalesce(launch, '')) AS launched_at,
           CASE WHEN min(log) OVER (PARTITION BY run_id, label, is_spread) = max(log) OVER (PARTITION BY run_id, label, is_spread)
                THEN attempt ELSE 0 END AS attempt_of_log
    FROM store_known
), placed AS (
    SELECT p.*, CASE WHEN p.is_spread THEN row_number() OVER (
               PARTITION BY p.run_id, p.label, p.is_spread
               ORDER BY p.attempt_of_log, p.launched_at, coalesce(p.launch, ''), coalesce(p.restart, 0), p.since, p.producer
           ) - 1 ELSE p.attempt END AS place,
           CASE WHEN p.is_spread THEN coalesce(p.is_primary AND h.label = p.label, false) ELSE p.is_primary END AS is_holder,
           CASE WHEN p.role = 'console' THEN coalesce(p.owner, p.producer) ELSE p.producer END AS family,
           p.role = 'rank' AS is_rank
    FROM launched p LEFT JOIN store_primaries h ON h.run_id = p.run_id
), owned AS (
    SELECT *, coalesce(role = 'console' AND coalesce(agent_node, node) = max(CASE WHEN is_rank THEN coalesce(agent_node, node) END)
               OVER (PARTITION BY family), false) AS has_owner,
           max(CASE WHEN is_rank THEN run_id END) OVER (PARTITION BY family) AS owner_run_id,
           max(CASE WHEN is_rank THEN label END) OVER (PARTITION BY family) AS owner_label,
           max(CASE WHEN is_rank THEN place END) OVER (PARTITION BY family) AS owner_place,
           max(CASE WHEN is_rank THEN rank END) OVER (PARTITION BY family) AS owner_rank,
           bool_or(is_rank AND is_presumed) OVER (PARTITION BY family) AS is_owner_presumed
    FROM placed
)
SELECT producer, CASE WHEN has_owner THEN owner_run_id ELSE run_id END AS run_id,
       CASE WHEN has_owner THEN owner_label ELSE label END AS label,
       CAST(CASE WHEN has_owner THEN owner_place ELSE place END AS INTEGER) AS attempt,
       CASE WHEN has_owner THEN owner_rank ELSE rank END AS rank, node, agent_node, is_holder AS is_primary,
       coalesce(is_coauthor, false) AS is_coauthor, CASE WHEN has_owner THEN family ELSE producer END AS owner, role, job_type,
       local_rank, world_size, pid, boot, start_ticks, hostname, rank_pid, gpus, state, exit_code, exit_signal, reason,
       sets_run, started_at, ended_at, produced, CASE WHEN has_owner THEN 'rank' ELSE role END AS owner_role,
       coalesce(CASE WHEN has_owner THEN is_owner_presumed ELSE is_presumed END, false) AS is_unknown
FROM owned;

-- What describes a run: what a person has set, else what the log of the primary has, else what there is.
CREATE VIEW store_newest_runs AS
WITH placed AS (
    SELECT r.*, h.label AS holder, row_number() OVER (PARTITION BY r.run_id ORDER BY CASE WHEN h.log = r.log THEN 0 ELSE 1 END,
        r.log) AS place
    FROM store_rows_of_runs r LEFT JOIN store_primaries h ON h.run_id = r.run_id
), ordered AS (
    SELECT *,
           CASE WHEN list_contains(edited, 'project') THEN 0 WHEN holder IS NULL AND project <> '' THEN 1 ELSE 2 END AS project_order,
           CASE WHEN list_contains(edited, 'name') THEN 0 WHEN holder IS NULL AND name <> '' THEN 1 ELSE 2 END AS name_order,
           CASE WHEN list_contains(edited, 'run_group') THEN 0 WHEN holder IS NULL AND run_group <> '' THEN 1 ELSE 2 END AS run_group_order,
           CASE WHEN list_contains(edited, 'job_type') THEN 0 WHEN holder IS NULL AND job_type <> '' THEN 1 ELSE 2 END AS job_type_order,
           CASE WHEN list_contains(edited, 'tags') THEN 0 WHEN holder IS NULL AND array_length(tags) > 0 THEN 1 ELSE 2 END AS tags_order,
           CASE WHEN list_contains(edited, 'notes') THEN 0 WHEN holder IS NULL AND notes <> '' THEN 1 ELSE 2 END AS notes_order
    FROM placed
), described AS (
    SELECT run_id, place, holder AS primary_label,
           first_value(project) OVER (PARTITION BY run_id ORDER BY project_order, place) AS project,
           first_value(name) OVER (PARTITION BY run_id ORDER BY name_order, place) AS name,
           first_value(run_group) OVER (PARTITION BY run_id ORDER BY run_group_order, place) AS run_group,
           first_value(job_type) OVER (PARTITION BY run_id ORDER BY job_type_order, place) AS job_type,
           first_value(tags) OVER (PARTITION BY run_id ORDER BY tags_order, place) AS tags,
           first_value(notes) OVER (PARTITION BY run_id ORDER BY notes_order, place) AS notes
    FROM ordered
)
SELECT * FROM described WHERE place = 1;

-- Ranges of seq that a log has, and one with a smaller ID, too, because an agent moved. They are left out of the larger one.
-- Ranges of one log may overlap and touch: a collector publishes them again when it merges its own.
CREATE VIEW store_doubled AS
WITH ranges AS (
    SELECT log, producer, first_seq, last_seq, max(last_seq) OVER (
               PARTITION BY producer, log ORDER BY first_seq, last_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
           min(log) OVER (PARTITION BY producer) AS smallest_log, max(log) OVER (PARTITION BY producer) AS largest_log
    FROM store_intervals
), joined AS (
    SELECT *, sum(CASE WHEN first_seq <= before + 1 THEN 0 ELSE 1 END) OVER (
        PARTITION BY producer, log ORDER BY first_seq, last_seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS part
    FROM ranges WHERE smallest_log < largest_log
), merged AS (
    SELECT log, producer, min(first_seq) AS first_seq, max(last_seq) AS last_seq FROM joined GROUP BY log, producer, part
)
SELECT o.log, o.producer, greatest(o.first_seq, k.first_seq) AS first_seq, least(o.last_seq, k.last_seq) AS last_seq
FROM merged o JOIN merged k
    ON k.producer = o.producer AND k.log < o.log AND k.first_seq <= o.last_seq AND k.last_seq >= o.first_seq;

-- What this leaves out of metrics: metric_series has it, too.
CREATE VIEW store_doubled_metrics AS
SELECT f.producer, f.key, f.value FROM store_metrics f
WHERE EXISTS (SELECT 1 FROM store_doubled d
    WHERE d.log = f.log AND d.producer = f.producer AND f.seq BETWEEN d.first_seq AND d.last_seq);

-- What a log adds to those with smaller IDs was seen there last.
CREATE VIEW store_seen AS
WITH logs AS (
    SELECT log, producer, max(seen_at) AS seen_at FROM store_intervals GROUP BY log, producer
), ranges AS (
    SELECT l.log, i.producer, i.first_seq, i.last_seq, l.seen_at, max(i.last_seq) OVER (
        PARTITION BY i.producer, l.log ORDER BY i.first_seq, i.last_seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM store_intervals i JOIN logs l ON l.producer = i.producer AND l.log >= i.log
), sums AS (
    SELECT log, producer, max(last_seq) AS last_seq, max(seen_at) AS seen_at,
           sum(greatest(last_seq - greatest(first_seq, coalesce(before + 1, first_seq)) + 1, 0)) AS stored
    FROM ranges GROUP BY log, producer
), grown AS (
    SELECT *, lag(stored) OVER (PARTITION BY producer ORDER BY log) AS stored_before FROM sums
)
SELECT producer, CAST(max(stored) AS BIGINT) AS stored, max(last_seq) AS last_seq,
       max(CASE WHEN stored > coalesce(stored_before, 0) THEN seen_at END) AS seen_at
FROM grown GROUP BY producer;

CREATE VIEW labels AS
SELECT p.run_id, p.label, p.attempt, p.is_primary, p.job_type, p.rank, p.local_rank, p.world_size, p.node, p.pid,
       p.hostname, p.rank_pid, p.gpus, coalesce(p.state, 'running') AS state, p.exit_code, p.exit_signal, p.reason,
       p.started_at, s.seen_at AS last_seen_at, p.ended_at
FROM store_identities p LEFT JOIN store_seen s ON s.producer = p.producer
WHERE p.role = 'rank' AND p.run_id IS NOT NULL;

CREATE VIEW runs AS
WITH newest AS (
    SELECT run_id, label, min(started_at) OVER (PARTITION BY run_id, label) AS started_at, attempt,
           coalesce(state, 'running') AS state, exit_code, ended_at, coalesce(sets_run, is_primary) AS sets_run
    FROM store_identities WHERE role = 'rank' AND run_id IS NOT NULL
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
)
SELECT r.run_id, r.project, r.name, r.run_group, r.job_type, r.tags, r.notes, s.state, s.exit_code, s.created_at,
       CASE WHEN s.state <> 'running' THEN s.ended_at END AS ended_at, r.primary_label, s.n_labels, s.n_attempts,
       CAST(s.n_failed AS BIGINT) AS n_failed, CAST(s.n_running AS BIGINT) AS n_running
FROM store_newest_runs r JOIN decided s ON s.run_id = r.run_id;

CREATE VIEW metrics AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.value
FROM store_metrics f JOIN store_identities i ON i.producer = f.producer;

CREATE VIEW phases AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.step, f.key AS phase, f.value AS seconds, f.ts
FROM store_phases f JOIN store_identities i ON i.producer = f.producer;

CREATE VIEW texts AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.value
FROM store_texts f JOIN store_identities i ON i.producer = f.producer;

CREATE VIEW histograms AS
SELECT i.run_id, i.label, i.attempt, i.rank, f.key, f.step, f.seq, f.ts, f.edges, f.counts
FROM store_histograms f JOIN store_identities i ON i.producer = f.producer;

CREATE VIEW console AS
SELECT i.run_id, i.label, i.attempt, f.stream, f.line_no, f.seq, f.ts, f.line
FROM store_console f JOIN store_identities i ON i.producer = f.producer;

CREATE VIEW system_samples AS
SELECT coalesce(i.agent_node, i.node) AS node, f.device, f.key AS name, f.ts, f.value
FROM store_system f JOIN store_identities i ON i.producer = f.producer;

-- The time in which an attempt had its label, in microseconds, without its end.
CREATE VIEW store_tenures AS
SELECT run_id, label, rank, node, agent_node, boot, pid, start_ticks, gpus, is_primary, producer, epoch_us(started_at) AS since,
       least(coalesce(epoch_us(ended_at) + 1, 9223372036854775807), coalesce(
           lead(epoch_us(started_at)) OVER (PARTITION BY run_id, label ORDER BY started_at, attempt), 9223372036854775807
       )) AS until
FROM store_identities WHERE role = 'rank' AND run_id IS NOT NULL;

-- Which label has which device of a node, and when: its GPUs, its process, and as the node's keeper all others, as ''.
CREATE VIEW store_owners AS
WITH placed AS (
    SELECT *, CASE WHEN start_ticks IS NOT NULL OR agent_node IS NULL THEN 'pid:' || CAST(pid AS VARCHAR) END AS process,
           first_value(label) OVER (
               PARTITION BY run_id, node ORDER BY is_primary DESC, coalesce(rank, 2147483647), since, producer
           ) AS keeper,
           min(CASE WHEN start_ticks IS NOT NULL OR agent_node IS NULL THEN since END) OVER (
               PARTITION BY node, boot, pid ORDER BY coalesce(start_ticks, -1)
               RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
           ) AS replaced_at
    FROM store_tenures
), listed AS (
    SELECT run_id, label, rank, node, since, until, process, coalesce(replaced_at, 9223372036854775807) AS replaced_at,
           list_concat(coalesce(gpus, []), [process, CASE WHEN label = keeper THEN '' END]) AS devices
    FROM placed
), devices AS (
    SELECT run_id, label, rank, node, since, until, process, replaced_at, unnest(devices) AS device FROM listed
), owners AS (
    SELECT run_id, label, rank, node, device, since,
           CASE WHEN device = process THEN least(until, replaced_at) ELSE until END AS until
    FROM devices WHERE device IS NOT NULL
)
SELECT * FROM owners WHERE until > since;

CREATE VIEW system AS
WITH moments AS (
    SELECT node, device, since, sum(n) AS n FROM (
        SELECT o.node, o.device, CASE WHEN c.n = 1 THEN o.since ELSE o.until END AS since, c.n
        FROM store_owners o CROSS JOIN (SELECT 1 AS n UNION ALL SELECT -1) c
    ) changes GROUP BY node, device, since
), spans AS (
    SELECT node, device, since, lead(since) OVER (PARTITION BY node, device ORDER BY since) AS until,
           CAST(sum(n) OVER (PARTITION BY node, device ORDER BY since ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT)
               AS n_sharers
    FROM moments
), shares AS (
    SELECT o.run_id, o.label, o.rank, o.node, o.device, s.since, s.until, s.n_sharers FROM store_owners o
    JOIN spans s ON s.node = o.node AND s.device = o.device AND s.since >= o.since AND s.since < o.until
), samples AS (
    SELECT *, epoch_us(ts) AS at, CASE WHEN starts_with(device, 'pid:') OR starts_with(device, 'GPU-')
        OR starts_with(device, 'MIG-') THEN device ELSE '' END AS owned_as
    FROM system_samples
)
SELECT o.run_id, o.label, o.rank, s.node, s.device, s.name, s.ts, s.value, o.n_sharers
FROM samples s JOIN shares o ON o.node = s.node AND o.device = s.owned_as AND s.at >= o.since AND s.at < o.until;

CREATE VIEW config AS
WITH own AS (
    SELECT i.run_id, c.key, c.value, c.ts, i.label
    FROM store_config c JOIN store_identities i ON i.producer = c.producer WHERE i.is_primary OR i.is_coauthor
    QUALIFY row_number() OVER (PARTITION BY i.run_id, c.key ORDER BY i.is_primary DESC, i.attempt DESC, c.seq DESC) = 1
), params AS (
    SELECT i.run_id, substr(t.key, 15) AS key, json_text(t.value) AS value, t.ts, i.label
    FROM store_run_tags t JOIN store_identities i ON i.producer = t.producer
    WHERE starts_with(t.key, 'chiplog:param/') AND i.run_id IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY i.run_id, t.key ORDER BY t.ts, t.seq, i.label, i.attempt) = 1
)
SELECT run_id, key, value, ts, label FROM own
UNION ALL
SELECT p.run_id, p.key, p.value, p.ts, p.label
FROM params p LEFT JOIN own o ON o.run_id = p.run_id AND o.key = p.key WHERE o.key IS NULL;

CREATE VIEW run_tags AS
WITH newest AS (
    SELECT i.run_id, t.key, t.value, i.label, t.ts
    FROM store_run_tags t JOIN store_identities i ON i.producer = t.producer
    WHERE i.run_id IS NOT NULL AND NOT starts_with(t.key, 'chiplog:param/') AND NOT starts_with(t.key, 'chiplog:import/')
    QUALIFY row_number() OVER (PARTITION BY i.run_id, t.key ORDER BY t.ts DESC, t.seq DESC, i.label, i.attempt DESC) = 1
)
SELECT run_id, key, value, label, ts FROM newest WHERE value IS NOT NULL;

CREATE VIEW metric_definitions AS
SELECT i.run_id, i.label, d.name, nullif(d.summary, '') AS summary, nullif(d.step_metric, '') AS step_metric,
       CAST(nullif(d.hidden, '') AS BOOLEAN) AS is_hidden
FROM store_definitions d JOIN store_identities i ON i.producer = d.producer
WHERE i.run_id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label, d.name ORDER BY i.attempt DESC, d.seq DESC) = 1;

-- The summary function of each label's metrics, where one is defined: by the label itself, else by the primary. Of a
-- pattern, * and ? match; [ and \ are letters.
CREATE VIEW store_summary_kinds AS
WITH patterns AS (
    SELECT run_id, label, name, summary, replace(replace(replace(replace(replace(
        name, '!', '!!'), '%', '!%'), '_', '!_'), '*', '%'), '?', '_') AS pattern
    FROM metric_definitions WHERE summary IS NOT NULL
), said AS (
    SELECT d.run_id, d.label, k.key,
           max_by(d.summary, (CASE WHEN d.name = k.key THEN 1000000 ELSE 0 END + length(d.name), d.name)) AS kind
    FROM patterns d JOIN (SELECT DISTINCT key FROM store_metric_series) k
        ON k.key = d.name OR k.key LIKE d.pattern ESCAPE '!'
    GROUP BY d.run_id, d.label, k.key
), spread AS (
    SELECT DISTINCT s.run_id, p.label, s.key, s.kind
    FROM said s JOIN store_newest_runs r ON r.run_id = s.run_id AND r.primary_label = s.label
    JOIN store_identities p ON p.run_id = s.run_id AND p.label <> s.label
)
SELECT run_id, label, key, kind FROM said
UNION ALL
SELECT s.run_id, s.label, s.key, s.kind
FROM spread s LEFT JOIN said o ON o.run_id = s.run_id AND o.label = s.label AND o.key = s.key WHERE o.key IS NULL;

-- Sums are added in no fixed order, so their last digits, and those of means, may be others than a collector's.
CREATE VIEW store_tallies AS
WITH attempts AS (
    SELECT i.run_id, i.label, i.attempt, i.producer, i.is_primary, i.rank, f.key, sum(f.n) AS n_all,
           min(f.first_step) AS first_step, max(f.last_step) AS last_step, max(f.last_ts) AS last_ts,
           max_by(f.last, f.last_seq) AS last, min_by(f.first, f.first_seq) AS first, min(f.min) AS min, max(f.max) AS max,
           sum(f.sum) AS sum, sum(f.n_numbers) AS n
    FROM (
        SELECT producer, key, n, first_step, last_step, last_ts, last, last_seq, first, first_seq, min, max, sum, n_numbers
        FROM store_metric_series
        UNION ALL
        SELECT producer, key, -count(*), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
               -sum(CASE WHEN NOT isnan(value) THEN value END), -count(CASE WHEN NOT isnan(value) THEN 1 END)
        FROM store_doubled_metrics GROUP BY producer, key
    ) f JOIN store_identities i ON i.producer = f.producer
    GROUP BY i.run_id, i.label, i.attempt, i.producer, i.is_primary, i.rank, f.key
)
SELECT run_id, label, key, max_by(last, attempt) AS last, min_by(first, attempt) AS first, min(min) AS min, max(max) AS max,
       sum(sum) AS sum, CAST(sum(n) AS BIGINT) AS n, bool_or(is_primary) AS is_primary, min(rank) AS rank,
       CAST(sum(n_all) AS BIGINT) AS n_all, min(first_step) AS first_step, max(last_step) AS last_step,
       max(last_ts) AS last_ts, max_by(last_step, attempt) AS step
FROM attempts GROUP BY run_id, label, key;

CREATE VIEW keys AS
SELECT run_id, label, rank, key, n_all AS n, n_all - n AS n_nan, first_step, last_step, step, last AS last_value,
       last_ts AS last_at, min, max, sum / nullif(n, 0) AS mean
FROM store_tallies WHERE run_id IS NOT NULL;

CREATE VIEW store_summary_said AS
SELECT i.run_id, i.label, s.key, s.value, i.is_primary, i.rank
FROM store_summary s JOIN store_identities i ON i.producer = s.producer
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label, s.key ORDER BY i.attempt DESC, s.seq DESC) = 1;

-- Digits of a number are those of the engine.
CREATE VIEW summary AS
WITH computed AS (
    SELECT t.run_id, t.label, t.key,
           CASE k.kind WHEN 'min' THEN coalesce(t.min, CAST('NaN' AS DOUBLE)) WHEN 'max' THEN coalesce(t.max, CAST('NaN' AS DOUBLE))
                WHEN 'mean' THEN coalesce(t.sum / nullif(t.n, 0), CAST('NaN' AS DOUBLE)) WHEN 'first' THEN t.first
                ELSE t.last END AS value
    FROM store_tallies t LEFT JOIN store_summary_kinds k ON k.run_id = t.run_id AND k.label = t.label AND k.key = t.key
    WHERE k.kind IS DISTINCT FROM 'none'
)
SELECT run_id, label, key, value FROM store_summary_said
UNION ALL
SELECT c.run_id, c.label, c.key,
       CASE WHEN isnan(c.value) THEN '"nan"' WHEN c.value > 1.7976931348623157e308 THEN '"inf"'
            WHEN c.value < -1.7976931348623157e308 THEN '"-inf"' ELSE CAST(c.value AS VARCHAR) END
FROM computed c LEFT JOIN store_summary_said s ON s.run_id = c.run_id AND s.label = c.label AND s.key = c.key
WHERE s.key IS NULL;

-- Label by label, so that a name that several labels have counts once; NaN never counts as larger.
CREATE VIEW store_places AS
SELECT producer, run_id, label, rank, attempt, dense_rank() OVER (PARTITION BY run_id ORDER BY label) AS place
FROM store_identities WHERE run_id IS NOT NULL AND label IS NOT NULL;

CREATE VIEW step_skew AS
WITH steps AS (
    SELECT p.run_id, f.key, f.step, count(DISTINCT p.label) AS n_labels, min(f.value) AS min, median(f.value) AS median,
           max(f.value) AS max, max_by(p.label, (
               CASE WHEN isnan(f.value) THEN CAST('-Infinity' AS DOUBLE) ELSE f.value END,
               CASE WHEN isnan(f.value) THEN -1000000000 - p.place ELSE -p.place END
           )) AS max_label
    FROM store_metrics f JOIN store_places p ON p.producer = f.producer GROUP BY p.run_id, f.key, f.step
)
SELECT run_id, key, step, n_labels, min, median, max, max_label, max_label AS slowest_label FROM steps;

-- Parts of a step are added; if a label did a step twice, its newest attempt counts.
CREATE VIEW stragglers AS
WITH parts AS (
    SELECT p.run_id, f.key, f.step, p.place, p.attempt, sum(f.value) AS seconds
    FROM store_phases f JOIN store_places p ON p.producer = f.producer GROUP BY p.run_id, f.key, f.step, p.place, p.attempt
), added AS (
    SELECT run_id, key, step, place, seconds FROM parts
    QUALIFY row_number() OVER (PARTITION BY run_id, key, step, place ORDER BY attempt DESC) = 1
), steps AS (
    SELECT run_id, key, step, median(seconds) AS typical, max(seconds) AS longest
    FROM added GROUP BY run_id, key, step HAVING count(*) > 1
), counted AS (
    SELECT a.run_id, a.key, a.place, count(*) AS n_steps,
           count(*) FILTER (WHERE a.seconds = s.longest AND a.seconds > s.typical) AS n_slowest,
           median(a.seconds) AS median_s, median(s.typical) AS typical_s, sum(a.seconds - s.typical) AS excess_s,
           sum(s.typical) AS sum_typical
    FROM added a JOIN steps s ON s.run_id = a.run_id AND s.key = a.key AND s.step = a.step GROUP BY a.run_id, a.key, a.place
), labelled AS (
    SELECT run_id, place, min(label) AS label, max_by(rank, attempt) FILTER (WHERE rank IS NOT NULL) AS rank
    FROM store_places GROUP BY run_id, place
)
SELECT c.run_id, c.key AS phase, l.label, l.rank, c.n_steps, c.n_slowest, c.median_s, c.typical_s, c.excess_s,
       c.excess_s / nullif(c.sum_typical, 0) AS share
FROM counted c JOIN labelled l ON l.run_id = c.run_id AND l.place = c.place;

CREATE VIEW store_saves AS
SELECT i.run_id, i.label, i.attempt, i.node, f.seq, f.ts, f.path, f.bytes, f.sha256, s.stored_at
FROM store_files f JOIN store_identities i ON i.producer = f.producer
LEFT JOIN (SELECT sha256, bytes, min(ts) AS stored_at FROM store_stored GROUP BY sha256, bytes) s
    ON s.sha256 = f.sha256 AND s.bytes = f.bytes
WHERE (i.is_primary OR i.is_coauthor OR starts_with(f.path, 'mlflow/')) AND i.run_id IS NOT NULL;

CREATE VIEW files AS
WITH saved AS (
    SELECT run_id, path, bytes, sha256, ts, label FROM store_saves
    QUALIFY row_number() OVER (PARTITION BY run_id, path, label ORDER BY attempt DESC, seq DESC, ts DESC) = 1
)
SELECT run_id, path, bytes, sha256, ts FROM saved
QUALIFY row_number() OVER (PARTITION BY run_id, path ORDER BY ts DESC, label) = 1;

-- The latest config of each label, as hashes by key; and those of a run whose hashes differ from the primary's.
CREATE VIEW store_config_last AS
SELECT c.producer, i.run_id, i.label, i.node, i.attempt, i.job_type, i.is_coauthor, c.seq, c.ts, c.is_whole, c.hashes
FROM store_config_hashes c JOIN store_identities i ON i.producer = c.producer WHERE i.run_id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY i.run_id, i.label ORDER BY i.attempt DESC, c.seq DESC) = 1;

CREATE VIEW store_drifts AS
WITH placed AS (
    SELECT l.producer, l.label, l.job_type, l.is_coauthor, l.is_whole, l.hashes, r.primary_label,
           max(CASE WHEN l.label = r.primary_label THEN l.hashes END) OVER (PARTITION BY l.run_id) AS primary_hashes,
           max(CASE WHEN l.label = r.primary_label THEN l.job_type END) OVER (PARTITION BY l.run_id) AS primary_job_type
    FROM store_config_last l JOIN store_newest_runs r ON r.run_id = l.run_id
), sides AS (
    SELECT p.producer, p.primary_label, p.is_whole, s.side, CASE WHEN s.side = 1 THEN p.hashes ELSE p.primary_hashes END AS hashes
    FROM placed p CROSS JOIN (SELECT 1 AS side UNION ALL SELECT 2) s
    WHERE p.label <> p.primary_label AND NOT p.is_coauthor AND p.hashes <> p.primary_hashes
      AND p.job_type IS NOT DISTINCT FROM p.primary_job_type
), compared AS (
    SELECT producer, primary_label, is_whole, key, max(CASE WHEN side = 1 THEN hash END) AS mine,
           max(CASE WHEN side = 2 THEN hash END) AS theirs
    FROM hashes_by_key(sides) GROUP BY producer, primary_label, is_whole, key
)
SELECT producer, primary_label, list_sort(list(key)) AS keys
FROM compared WHERE mine IS DISTINCT FROM theirs AND (mine IS NOT NULL OR is_whole)
GROUP BY producer, primary_label;

CREATE VIEW events AS
WITH told AS (
    SELECT coalesce(i.run_id, CASE WHEN e.kind IN ('refused_node', 'run_edited') THEN e.body->>'$.run_id' END) AS run_id,
           coalesce(i.label, CASE WHEN e.kind = 'refused_node' THEN e.body->>'$.label' END) AS label, i.attempt, i.node,
           e.seq, e.ts, e.kind, e.level, e.message, e.body, e.outcome,
           e.outcome IS NOT NULL AND coalesce(i.role = 'console', false) AS is_helper
    FROM store_events e LEFT JOIN store_identities i ON i.producer = e.producer
)
SELECT run_id, label, attempt, node, seq, ts, CASE WHEN is_helper THEN 'console_helper' ELSE kind END AS kind,
       CASE WHEN is_helper THEN 'warning' ELSE level END AS level,
       CASE WHEN is_helper THEN 'the helper that recorded the console ' || outcome
            WHEN outcome IS NOT NULL AND label IS NOT NULL THEN label || ' ' || outcome ELSE message END AS message, body
FROM told
UNION ALL
SELECT l.run_id, l.label, l.attempt, l.node, l.seq, l.ts, 'config_drift', 'warning',
       l.label || ' has another config than ' || d.primary_label || ': ' || array_to_string(list_slice(d.keys, 1, 20), ', ')
           || CASE WHEN array_length(d.keys) > 20 THEN ' and ' || CAST(array_length(d.keys) - 20 AS VARCHAR) || ' more' ELSE '' END,
       '{"keys":' || json_list(d.keys) || ',"primary":' || json_text(d.primary_label) || '}'
FROM store_drifts d JOIN store_config_last l ON l.producer = d.producer
UNION ALL
SELECT run_id, label, attempt, node, seq, greatest(ts, stored_at), 'file_stored', 'info',
       'file ' || path || ' arrived whole, ' || CAST(bytes AS VARCHAR) || ' bytes',
       '{"path":' || json_text(path) || ',"bytes":' || CAST(bytes AS VARCHAR) || ',"sha256":' || json_text(sha256) || '}'
FROM store_saves WHERE stored_at IS NOT NULL;

CREATE VIEW completeness AS
WITH losses AS (
    SELECT producer, first_seq, last_seq, reason FROM store_losses
    QUALIFY number = max(number) OVER (PARTITION BY log, producer)
), lost AS (
    SELECT producer, sum(last_seq - first_seq + 1) AS lost, max(last_seq) AS last_seq,
           array_to_string(list_sort(list(DISTINCT reason) FILTER (WHERE reason IS NOT NULL)), '; ') AS reasons
    FROM losses GROUP BY producer
), rejected AS (
    SELECT producer, count(DISTINCT seq) AS n FROM store_events
    WHERE kind = 'quarantined' AND producer IS NOT NULL GROUP BY producer
), counted AS (
    SELECT i.owner, i.run_id, i.label, i.attempt, i.is_unknown,
           coalesce(s.stored, 0) - least(coalesce(r.n, 0), coalesce(s.stored, 0)) AS stored,
           coalesce(l.lost, 0) + least(coalesce(r.n, 0), coalesce(s.stored, 0)) AS lost,
           nullif(concat_ws('; ', nullif(l.reasons, ''), CASE WHEN least(coalesce(r.n, 0), coalesce(s.stored, 0)) > 0
               THEN 'rejected: see quarantined in events' END), '') AS reasons,
           greatest(coalesce(i.produced, 0), coalesce(s.last_seq + 1, 0), coalesce(l.last_seq + 1, 0)) AS produced
    FROM store_identities i LEFT JOIN store_seen s ON s.producer = i.producer LEFT JOIN lost l ON l.producer = i.producer
    LEFT JOIN rejected r ON r.producer = i.producer
    WHERE i.owner_role = 'rank' AND i.run_id IS NOT NULL
)
SELECT run_id, label, attempt, CASE WHEN NOT is_unknown THEN CAST(sum(produced) AS BIGINT) END AS produced,
       CAST(sum(stored) AS BIGINT) AS stored, CAST(sum(lost) AS BIGINT) AS lost,
       CASE WHEN NOT is_unknown THEN CAST(sum(produced - stored - lost) AS BIGINT) END AS pending,
       nullif(concat_ws('; ', CASE WHEN is_unknown THEN 'unknown: the node or collector was lost, and what it had not sent' END,
           nullif(array_to_string(list_sort(list(reasons) FILTER (WHERE reasons IS NOT NULL)), '; '), '')), '') AS reasons
FROM counted GROUP BY owner, is_unknown, run_id, label, attempt;
