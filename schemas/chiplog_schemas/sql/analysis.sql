-- The views of analysis: how labels differ, who is slow, what the time was spent on. See also views.sql.
-- They compute with the integers of the facts, and look names up last. They group by the run's name, so that a query
-- for one run reads only that run.

-- Per producer with a run: the number of its label among the run's labels, by name, and a bit string with that bit set.
-- OR over the bit strings counts labels in a third of the time of count(DISTINCT label).
CREATE OR REPLACE VIEW base.label_places AS
SELECT *, set_bit(repeat('0', n_places)::BIT, place, 1) AS bit FROM (
    SELECT *, max(place) OVER (PARTITION BY run_id) + 1 AS n_places FROM (
        SELECT producer, run_id, label, rank, attempt,
               (dense_rank() OVER (PARTITION BY run_id ORDER BY label) - 1)::INTEGER AS place
        FROM base.identified WHERE run_id IS NOT NULL AND label IS NOT NULL
    )
);

-- Per step: the spread of the labels' values. `max_label` has the largest value; of equal values the first name counts.
-- NaN never counts as larger. A label counts once, also if it logged the step in two attempts.
-- `slowest_label` is an alias of `max_label`, until version 1.0.
CREATE OR REPLACE VIEW step_skew AS
SELECT s.run_id, n.name AS key, s.step, s.n_labels, s.min, s.median, s.max, s.max_label, s.max_label AS slowest_label
FROM (
    SELECT p.run_id, f.key, f.step,
           bit_count(bit_or(p.bit)) AS n_labels,  -- safeguard: label-counts-once
           min(f.value) AS min, median(f.value) AS median, max(f.value) AS max,
           -- All labels with NaN come after the labels with -inf: no run has a billion labels.
           arg_max(p.label, CASE WHEN isnan(f.value) THEN ('-inf'::DOUBLE, -1000000000 - p.place)
                                 ELSE (f.value, -p.place) END) AS max_label
    FROM base.metric_facts f JOIN base.label_places p ON p.producer = f.producer
    GROUP BY p.run_id, f.key, f.step
) s JOIN base.names n ON n.id = s.key;

-- Return true if a phase may contain waiting for other ranks: its name has a word for a collective, or is `backward`, in
-- which DDP reduces gradients.
CREATE OR REPLACE MACRO base.may_wait(phase) AS regexp_matches(
    lower(phase),
    '(^|[^a-z])(all_?reduce|reduce(_?scatter)?|all_?gather|gather|scatter|all_?to_?all|broadcast|bcast|barrier|'
    || 'collective|comms?|communicat(e|ion)|sync(hroni[sz]e)?|wait|send|recv|p2p|nccl|gloo|mpi|backward)([^a-z]|$)'
);

-- Per run, phase, step and label: its seconds, beside the median and the maximum of the labels, for steps with several
-- labels. Parts of a step are added; if a label did a step twice, its newest attempt counts. To group all rows by label
-- takes twice as long as the rest, so only steps in which a label has several rows are grouped that way. The rows of the
-- other steps are kept in a list: to join them again would take twice as long, too.
CREATE OR REPLACE MACRO base.compared(first_step, last_step) AS TABLE
WITH steps AS MATERIALIZED (
    SELECT p.run_id, f.key, f.step, count(*) AS n_rows, bit_count(bit_or(p.bit)) AS n_labels,
           median(f.value) AS typical, max(f.value) AS longest,
           list({'place': p.place, 'seconds': f.value}) AS members
    FROM base.phase_facts f JOIN base.label_places p ON p.producer = f.producer
    WHERE f.step BETWEEN first_step AND last_step
    GROUP BY p.run_id, f.key, f.step
), added AS (
    -- The CASE is always true. Without it DuckDB adds up all phases of all runs before the join.
    SELECT run_id, key, step, place, sum(CASE WHEN s.n_rows <> s.n_labels THEN f.value END) AS seconds
    FROM base.phase_facts f JOIN base.label_places p USING (producer) JOIN steps s USING (run_id, key, step)
    WHERE s.n_rows <> s.n_labels
    GROUP BY run_id, key, step, place, attempt
    QUALIFY row_number() OVER (PARTITION BY run_id, key, step, place ORDER BY attempt DESC) = 1
)
SELECT run_id, key, step, member.place AS place, member.seconds AS seconds, typical, longest
FROM (
    SELECT run_id, key, step, typical, longest, unnest(members) AS member FROM steps
    WHERE n_rows = n_labels AND n_labels > 1  -- safeguard: parts-of-step-added
)
UNION ALL
SELECT run_id, key, step, place, a.seconds, s.typical, s.longest
FROM added a JOIN (
    SELECT run_id, key, step, median(seconds) AS typical, max(seconds) AS longest
    FROM added GROUP BY run_id, key, step HAVING count(*) > 1
) s USING (run_id, key, step);

-- Per producer and phase of a run: what the phase is for `base.outside`. A phase is shared if more than half of the
-- run's labels have it. Where shared phases have less than half of the time of the steps, whole steps count in their place. Steps from
-- the first one of a later attempt of the label on do not count, and one producer counts for an attempt. A run with a
-- phase of its own that is called `outside` has none of this.
CREATE OR REPLACE VIEW base.phase_kinds AS
SELECT run_id, place, producer, key, until_step, name = 'step' AS is_step, is_shared,
       CASE WHEN name = 'step' THEN NOT are_covered ELSE is_shared AND are_covered END AS counts,
       CASE WHEN counts THEN 1::UBIGINT << (dense_rank() OVER (PARTITION BY run_id ORDER BY key) % 63)::UBIGINT
            ELSE 0 END AS bit
FROM (
    SELECT *, coalesce(sum(seconds) FILTER (is_shared) OVER of_run, 0)
              >= 0.5 * coalesce(sum(seconds) FILTER (name = 'step') OVER of_run, 0) AS are_covered
    FROM (
        SELECT *, name <> 'step' AND 2 * count(DISTINCT place) OVER (PARTITION BY run_id, key)
                  > count(DISTINCT place) OVER (PARTITION BY run_id) AS is_shared,
               min(begins) OVER (PARTITION BY run_id, place ORDER BY attempt
                                 RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS until_step,
               sum(n) OVER (PARTITION BY run_id, place, attempt, producer) AS n_rows,
               bool_or(name = 'outside') OVER (PARTITION BY run_id) AS has_own
        FROM (
            SELECT p.run_id, p.place, p.attempt, s.producer, s.key, n.name, sum(s.n) AS n, sum(s.sum) AS seconds,
                   min(s.first_step) AS begins
            FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer
            JOIN base.names n ON n.id = s.key WHERE n.name <> 'gc' GROUP BY ALL
        )
    ) WHERE NOT has_own WINDOW of_run AS (PARTITION BY run_id)
    QUALIFY producer = first_value(producer) OVER (PARTITION BY run_id, place, attempt ORDER BY n_rows DESC, begins, producer)
);

-- Per run, step and label: its seconds outside of the phases that labels share, from the end of its step before to the
-- end of this one; beside them the median and the maximum of the labels, and the median length of these steps. A label
-- is compared with those that have the same step before and the same shared phases: a row of the others is not there
-- yet, or they do something else. On a GPU, phases may take longer than the step on the host, which then waits for them
-- in the next step: what they take too long is subtracted there.
-- A range reads 100 steps before it: its first step needs the one before.
CREATE OR REPLACE MACRO base.outside(first_step, last_step) AS TABLE
WITH spent AS (
    SELECT k.run_id, k.place, f.step, epoch_us(max(f.ts)) AS ended_us, bit_or(k.bit) AS phases,
           coalesce(sum(f.value) FILTER (k.counts), 0) AS shared, k.producer
    FROM base.phase_facts f JOIN base.phase_kinds k ON k.producer = f.producer AND k.key = f.key
    WHERE f.step BETWEEN greatest(first_step, -9223372036854775708) - 100 AND last_step
      AND (k.until_step IS NULL OR f.step < k.until_step)
    GROUP BY k.run_id, k.place, k.producer, f.step
), timed AS (
    SELECT run_id, place, step, phases,
           lag(step) OVER of_label AS previous,  -- safeguard: same-step-before
           (ended_us - lag(ended_us) OVER of_label) / 1e6 AS took,
           (lag(ended_us) OVER of_label - lag(ended_us, 2) OVER of_label) / 1e6 - lag(shared) OVER of_label AS rest_before,
           greatest(took - shared + least(coalesce(rest_before, 0), 0), 0) AS seconds
    FROM spent WINDOW of_label AS (PARTITION BY run_id, producer ORDER BY step)
)
SELECT run_id, step, previous, member.place AS place, member.seconds AS seconds, typical, longest, usual
FROM (
    SELECT run_id, step, previous, median(seconds) AS typical, max(seconds) AS longest, median(took) AS usual,
           unnest(list({'place': place, 'seconds': seconds})) AS member
    FROM timed WHERE previous IS NOT NULL AND phases <> 0 AND step >= first_step
    GROUP BY run_id, step, previous, phases HAVING count(*) > 1 AND max(seconds) > 0
);

-- Both: of phases, and outside of them. `usual` is what an excess is compared with: for a phase its median. The time
-- outside often has a median of almost nothing, so there it is the median length of the step.
CREATE OR REPLACE MACRO base.compared_with_outside(first_step, last_step) AS TABLE
SELECT run_id, key, step, place, seconds, typical, longest, typical AS usual FROM base.compared(first_step, last_step)
UNION ALL
SELECT run_id, -1 AS key, step, place, seconds, typical, longest, usual FROM base.outside(first_step, last_step);

CREATE OR REPLACE VIEW base.phase_names AS SELECT id, name FROM base.names UNION ALL SELECT -1, 'outside';

-- The name and the newest rank of each label of `label_places`.
CREATE OR REPLACE VIEW base.labels_by_place AS
SELECT run_id, place, min(label) AS label, arg_max(rank, attempt) AS rank FROM base.label_places GROUP BY run_id, place;

-- Per run, phase and label: the difference from the median of the labels, step by step.
CREATE OR REPLACE MACRO base.stragglers_in(first_step, last_step) AS TABLE
SELECT c.run_id, n.name AS phase, l.label, l.rank, c.n_steps, c.n_slowest, c.median_s, c.typical_s, c.excess_s,
       c.excess_s / nullif(c.sum_typical, 0) AS share
FROM (
    SELECT run_id, key, place, count(*) AS n_steps,
           count(*) FILTER (seconds = longest AND seconds > typical) AS n_slowest,
           median(seconds) AS median_s, median(typical) AS typical_s, sum(seconds - typical) AS excess_s,
           sum(typical) AS sum_typical
    FROM base.compared(first_step, last_step) GROUP BY run_id, key, place
) c JOIN base.names n ON n.id = c.key
JOIN base.labels_by_place l ON l.run_id = c.run_id AND l.place = c.place;

CREATE OR REPLACE VIEW stragglers AS
FROM base.stragglers_in(-9223372036854775808, 9223372036854775807);

-- The steps of each run up to one: the first, the first of the last 100, and their number. No sum of steps may overflow.
CREATE OR REPLACE MACRO base.step_ranges(until_step) AS TABLE
SELECT run_id, first_step, greatest(last_step::HUGEINT - 99, first_step)::BIGINT AS last_from,
       last_step::DOUBLE - first_step + 1 AS n
FROM (
    SELECT i.run_id, min(s.first_step) AS first_step, max(least(s.last_step, until_step)) AS last_step
    FROM base.phase_series s JOIN base.identified i ON i.producer = s.producer WHERE i.label IS NOT NULL GROUP BY i.run_id
);

-- Per run, window of steps, phase and label: how slow it was, by the other labels and by its own past, since when, and
-- whether it is a culprit or waited for one. The phase `outside` is the time outside of shared phases. Windows are the tenths of the run and its last 100 steps. They are added up
-- from hundredths of the run, which also show since when a label is slow. A label is slow with a share of 0.05 or more.
-- Each query block is read once, by the next one: DuckDB would not leave out other runs in a block that two read.
CREATE OR REPLACE MACRO base.straggler_windows_until(end_step) AS TABLE
WITH parts AS (
    SELECT c.run_id, c.key, c.place, least(floor((c.step::DOUBLE - r.first_step) * 100 / r.n), 99)::INTEGER AS hundredth,
           c.step >= r.last_from AS is_last,
           count(*) AS n, min(c.step) AS first_step, max(c.step) AS last_step,
           sum(c.seconds) AS seconds, sum(c.typical) AS typical, sum(c.usual) AS usual,
           min(c.step) FILTER (c.seconds > c.typical + 0.05 * c.usual) AS first_slow,
           max(c.step) FILTER (c.seconds > c.typical + 0.05 * c.usual) AS last_slow
    FROM base.compared_with_outside(-9223372036854775808, end_step) c
    JOIN base.step_ranges(end_step) r ON r.run_id = c.run_id
    GROUP BY c.run_id, c.key, c.place, hundredth, is_last
), judged AS (  -- a hundredth with the first of the last 100 steps has two rows
    SELECT *, sum(seconds) OVER same - sum(typical) OVER same AS excess,
           excess >= 0.05 * sum(usual) OVER same AND excess > 0 AS is_slow
    FROM parts WINDOW same AS (PARTITION BY run_id, key, place, hundredth)
), spells AS (
    SELECT *, CASE WHEN is_slow THEN min(first_slow) FILTER (is_slow) OVER spell END AS since_step,
           CASE WHEN is_slow THEN max(last_slow) FILTER (is_slow) OVER spell END AS until_step
    FROM (
        SELECT *, count(*) FILTER (NOT is_slow) OVER (PARTITION BY run_id, key, place ORDER BY hundredth) AS n_before,
               sum(n) FILTER (NOT is_last) OVER (PARTITION BY run_id, key, place) AS n_past,
               sum(seconds) FILTER (NOT is_last) OVER (PARTITION BY run_id, key, place) AS past
        FROM judged
    ) WINDOW spell AS (PARTITION BY run_id, key, place, n_before)
), spans AS (
    SELECT run_id, key, place, span, min(first_step) AS first_step, max(last_step) AS last_step,
           sum(n) AS n, sum(seconds) AS seconds, sum(typical) AS typical, sum(usual) AS usual,
           arg_max(since_step, (excess, -hundredth)) FILTER (is_slow) AS since_step,
           arg_max(until_step, (excess, -hundredth)) FILTER (is_slow) AS until_step,
           any_value(past) / any_value(n_past) AS before_last_s
    FROM (
        SELECT *, unnest(CASE WHEN is_last THEN [tenth, 11] ELSE [tenth] END) AS span
        -- safeguard: windows-of-steps
        FROM (SELECT *, hundredth // 10 + 1 AS tenth FROM spells)
    ) GROUP BY run_id, key, place, span
), scored AS (
    SELECT s.*, n.name AS phase, s.seconds - s.typical AS excess_s, excess_s / nullif(s.usual, 0) AS share,
           s.seconds / s.n AS mean_s, s.typical / s.n AS typical_s, base.may_wait(n.name) AS may_wait,
           CASE WHEN s.span <= 10 THEN sum(s.seconds) OVER past / sum(s.n) OVER past ELSE s.before_last_s END AS past_s
    FROM spans s JOIN base.phase_names n ON n.id = s.key
    WINDOW past AS (PARTITION BY s.run_id, s.key, s.place ORDER BY s.span
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), worked AS (
    SELECT *, coalesce(sum(seconds) FILTER (NOT may_wait AND phase <> 'step' AND key >= 0) OVER of_label, 0) AS named_s,
           coalesce(sum(excess_s) FILTER (key < 0) OVER of_label, 0) AS outside_s,
           coalesce(sum(seconds) FILTER (phase = 'data') OVER of_label, 0) AS data_s,
           named_s + greatest(outside_s, 0) AS work_s
    FROM scored WINDOW of_label AS (
        PARTITION BY run_id, span, place ORDER BY phase ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
), named AS (
    SELECT *, CASE WHEN key < 0 THEN first_value(place) OVER (of_span ORDER BY named_s DESC, place)
                   WHEN may_wait THEN first_value(place) OVER (of_span ORDER BY work_s DESC, place)
                   WHEN phase <> 'step' THEN first_value(place) OVER (of_span ORDER BY data_s DESC, place)
                   ELSE first_value(place) OVER (of_span ORDER BY outside_s DESC, place) END AS busiest,
           CASE WHEN share < 0.05 OR share IS NULL THEN NULL
                -- safeguard: waiting-is-no-fault
                WHEN may_wait AND max(work_s) OVER of_span - work_s >= 0.5 * excess_s
                  -- A step has all waiting in it.
                  OR phase = 'step' AND max(outside_s) OVER of_span - outside_s >= 0.5 * excess_s
                  -- The time outside may be a wait that has no phase, if a label with more work was outside for less time.
                  OR key < 0 AND max(named_s) OVER of_span - named_s >= 0.5 * excess_s
                     AND first_value(outside_s) OVER (of_span ORDER BY named_s DESC, place) <= -0.5 * excess_s
                  -- No label waits for others in `data`. Another phase may be a wait for the label with the most of it, if
                  -- that label is shorter there. Of two labels the difference is twice the excess; noise has far less.
                  OR key >= 0 AND phase NOT IN ('step', 'data')
                     AND max(data_s) OVER of_span - data_s BETWEEN 0.5 * excess_s AND 4 * excess_s
                     AND first_value(excess_s) OVER (PARTITION BY run_id, span, key ORDER BY data_s DESC, place) < 0
                THEN 'victim' ELSE 'culprit' END AS role
    FROM worked WINDOW of_span AS (PARTITION BY run_id, span)
)
SELECT s.run_id, CASE WHEN s.span = 11 THEN 'last' ELSE s.span || '/10' END AS span, s.phase,
       rank() OVER (PARTITION BY s.run_id, s.span, s.key ORDER BY s.share DESC NULLS LAST) AS place,
       l.label, l.rank, s.role, CASE WHEN s.role = 'victim' THEN c.label END AS waits_for,
       s.first_step, s.last_step, s.n::BIGINT AS n_steps, s.mean_s, s.typical_s, s.excess_s, s.share,
       s.mean_s / nullif(s.past_s, 0) - 1 AS past_share,
       CASE WHEN s.share >= 0.05 THEN s.since_step END AS since_step,
       CASE WHEN s.share >= 0.05 THEN s.until_step END AS until_step
FROM named s JOIN base.labels_by_place l ON l.run_id = s.run_id AND l.place = s.place
LEFT JOIN base.labels_by_place c ON c.run_id = s.run_id AND c.place = s.busiest AND s.role = 'victim';

CREATE OR REPLACE VIEW straggler_windows AS
FROM base.straggler_windows_until(9223372036854775807);

-- Per run, label and attempt: the last step that it finished. A step is finished when all phases are recorded that the
-- label has in most steps; `step` is the last of them.
CREATE OR REPLACE VIEW base.finished_steps AS
SELECT run_id, label, attempt, any_value(rank) AS rank, min(last_step) FILTER (2 * n >= most) AS step
FROM (
    SELECT p.run_id, p.label, p.attempt, p.rank, sum(s.n) AS n, max(s.last_step) AS last_step,
           max(sum(s.n)) OVER (PARTITION BY p.run_id, p.label, p.attempt) AS most
    FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer
    JOIN base.names n ON n.id = s.key WHERE n.name <> 'gc'
    GROUP BY p.run_id, p.label, p.attempt, p.rank, s.key
) GROUP BY run_id, label, attempt;

-- Per label, attempt and phase: its steps and seconds. A long step has several rows of a phase, so steps are counted as
-- bits, one bit string for each 256 steps: a group for each step would take seven times as long. `known_s` are the
-- seconds in steps whose length is known, those with the phase `step`: by whole blocks where all of their steps are.
CREATE OR REPLACE VIEW phase_times AS
WITH blocks AS MATERIALIZED (
    SELECT i.run_id, f.producer, f.key, f.step - (f.step & 255) AS block,
           bitstring_agg((f.step & 255)::INTEGER, 0, 255) AS steps, sum(f.value) AS seconds
    FROM base.phase_facts f JOIN base.identified i ON i.producer = f.producer
    GROUP BY i.run_id, f.producer, f.key, block
), known AS NOT MATERIALIZED (
    SELECT b.*, b.steps & w.steps AS shared
    FROM blocks b JOIN blocks w ON w.run_id = b.run_id AND w.producer = b.producer AND w.block = b.block
    WHERE w.key = (SELECT id FROM base.names WHERE name = 'step')
), parts AS (
    SELECT run_id, producer, key, bit_count(steps) AS n_steps, seconds, NULL::DOUBLE AS known_s FROM blocks
    UNION ALL
    SELECT run_id, producer, key, 0, 0, seconds FROM known WHERE shared = steps
    UNION ALL
    SELECT k.run_id, k.producer, k.key, 0, 0, f.value
    FROM known k JOIN base.phase_facts f
        ON f.producer = k.producer AND f.key = k.key AND f.step - (f.step & 255) = k.block
    WHERE k.shared <> k.steps AND get_bit(k.shared, (f.step & 255)::INTEGER) = 1
)
SELECT s.run_id, p.label, p.attempt, p.rank, n.name AS phase, s.n_steps, s.seconds, s.seconds / s.n_steps AS mean_s,
       s.known_s, s.known_s / nullif(max(s.known_s) FILTER (n.name = 'step') OVER of_producer, 0) AS share
FROM (
    SELECT run_id, producer, key, sum(n_steps)::BIGINT AS n_steps, sum(seconds) AS seconds, sum(known_s) AS known_s
    FROM parts GROUP BY run_id, producer, key
) s JOIN base.label_places p ON p.producer = s.producer AND p.run_id = s.run_id JOIN base.names n ON n.id = s.key
WINDOW of_producer AS (PARTITION BY s.run_id, s.producer);

-- Per label and attempt: the time spent waiting for data. `share` refers to the steps whose length is known.
CREATE OR REPLACE MACRO base.data_wait_in(first_step, last_step) AS TABLE
SELECT w.run_id, p.label, p.attempt, p.rank, w.* EXCLUDE (run_id, producer)
FROM (
    SELECT run_id, producer, count(waited) AS n_steps, sum(waited) AS wait_s, median(waited) AS median_wait_s,
           max(waited) AS max_wait_s, max_by(step, (waited, -step::HUGEINT)) FILTER (waited IS NOT NULL) AS max_wait_step, sum(took) AS step_s,
           sum(coalesce(waited, 0)) FILTER (took IS NOT NULL) / nullif(sum(took), 0) AS share
    FROM (
        SELECT p.run_id, f.producer, f.step, sum(f.value) FILTER (n.name = 'data') AS waited,
               sum(f.value) FILTER (n.name = 'step') AS took
        FROM base.phase_facts f JOIN base.label_places p ON p.producer = f.producer JOIN base.names n ON n.id = f.key
        WHERE n.name IN ('data', 'step') AND f.step BETWEEN first_step AND last_step
        GROUP BY p.run_id, f.producer, f.step
    ) GROUP BY run_id, producer HAVING count(waited) > 0
) w JOIN base.label_places p ON p.producer = w.producer AND p.run_id = w.run_id;

CREATE OR REPLACE VIEW data_wait AS
FROM base.data_wait_in(-9223372036854775808, 9223372036854775807);

-- Per run with steps of known length: how much of its time was training. Times are means over its ranks; without ranks,
-- over its labels. A step of a label counts once, in its newest attempt: in an earlier one it is repeated work. Formula:
-- goodput = productive time / wall time, as in Google's "Goodput metric as measure of ML productivity" (2024). Kokolis
-- et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (arXiv:2410.21680, 2024) call it
-- the effective training time ratio.
CREATE OR REPLACE VIEW goodput AS
WITH steps AS MATERIALIZED (
    SELECT p.run_id, p.place, p.attempt, f.step, sum(f.value) AS seconds,
           min(epoch_us(f.ts) - f.value * 1e6) AS began_us, max(epoch_us(f.ts)) AS ended_us
    FROM base.phase_facts f JOIN base.label_places p ON p.producer = f.producer JOIN base.names n ON n.id = f.key
    WHERE n.name = 'step' GROUP BY p.run_id, p.place, p.attempt, f.step
), again AS (  -- of labels with several attempts, the newest attempt of each step
    SELECT run_id, place, step, max(attempt) AS attempt FROM steps JOIN (
        SELECT run_id, place FROM base.label_places GROUP BY run_id, place HAVING count(DISTINCT attempt) > 1
    ) USING (run_id, place) GROUP BY run_id, place, step
), attempts AS (
    SELECT s.run_id, s.place, s.attempt, min(s.began_us) AS began_us, max(s.ended_us) AS ended_us,
           sum(s.seconds) FILTER (a.attempt IS NULL) AS productive_s,  -- safeguard: repeated-steps-not-productive
           sum(s.seconds) FILTER (a.attempt IS NOT NULL) AS repeated_s
    FROM steps s LEFT JOIN again a
        ON a.run_id = s.run_id AND a.place = s.place AND a.step = s.step AND a.attempt > s.attempt
    GROUP BY s.run_id, s.place, s.attempt
), gaps AS (
    SELECT *, began_us - lag(ended_us) OVER (PARTITION BY run_id, place ORDER BY attempt) AS down_us FROM attempts
), by_label AS (
    SELECT run_id, place, count(*) - 1 AS n_restarts, min(began_us) AS began_us, max(ended_us) AS ended_us,
           sum(productive_s) AS productive_s, coalesce(sum(repeated_s), 0) AS repeated_s,
           coalesce(sum(greatest(down_us, 0)), 0) / 1e6 AS down_s
    FROM gaps GROUP BY run_id, place
), lives AS (
    SELECT l.run_id, l.place, min(epoch_us(p.started_at)) AS started_us, bool_or(p.rank IS NOT NULL) AS is_rank,
           arg_max(epoch_us(p.ended_at), p.attempt) FILTER (p.state IS NOT NULL) AS left_us
    FROM base.label_places l JOIN base.producers p ON p.producer = l.producer GROUP BY l.run_id, l.place
), counted AS (
    SELECT *, min(least(started_us, began_us)) OVER of_run AS first_us,
           max(greatest(left_us, ended_us)) OVER of_run AS last_us
    FROM (
        SELECT b.*, l.started_us, l.left_us FROM by_label b JOIN lives l ON l.run_id = b.run_id AND l.place = b.place
        QUALIFY l.is_rank OR NOT bool_or(l.is_rank) OVER (PARTITION BY b.run_id)
    ) WINDOW of_run AS (PARTITION BY run_id)
)
SELECT run_id, count(*) AS n_labels, max(n_restarts) AS n_restarts, any_value(last_us - first_us) / 1e6 AS wall_s,
       avg(productive_s) AS productive_s, avg(productive_s) / nullif(wall_s, 0) AS goodput,
       avg(began_us - first_us) / 1e6 AS startup_s, avg(repeated_s) AS repeated_s, avg(down_s) AS down_s,
       wall_s - avg(productive_s) - startup_s - avg(repeated_s) - avg(down_s) AS other_s
FROM counted GROUP BY run_id;

-- The reasons by their bits, and the counters of their times. Bits: nvmlClocksEventReasons of NVML's API reference; an idle
-- GPU and chosen clocks are no throttling. Slowdown by the hardware as such has no counter.
CREATE OR REPLACE VIEW base.throttle_reasons(reason, bit, counter) AS VALUES
    ('sw_power_cap', 4, 'hw.gpu.throttle.time.sw_power'), ('hw_slowdown', 8, NULL),
    ('sync_boost', 16, 'hw.gpu.throttle.time.sync_boost'),
    ('sw_thermal_slowdown', 32, 'hw.gpu.throttle.time.sw_thermal'),
    ('hw_thermal_slowdown', 64, 'hw.gpu.throttle.time.hw_thermal'),
    ('hw_power_brake_slowdown', 128, 'hw.gpu.throttle.time.hw_brake');

-- The counters of throttling in whole microseconds: a sum of integers is exact, so a counter that stands still grows by 0.
CREATE OR REPLACE VIEW base.throttle_times AS
SELECT s.run_id, s.label, s.rank, s.node, s.device, r.reason, r.bit, s.ts, TRY_CAST(1e6 * s.value AS BIGINT) AS us
FROM main.system s JOIN base.throttle_reasons r ON r.counter = s.name
WHERE s.name IN (
    'hw.gpu.throttle.time.sw_power', 'hw.gpu.throttle.time.sync_boost', 'hw.gpu.throttle.time.sw_thermal',
    'hw.gpu.throttle.time.hw_thermal', 'hw.gpu.throttle.time.hw_brake'
);

-- Each part of a step of known length: a long step has several rows.
CREATE OR REPLACE VIEW base.step_parts AS
SELECT p.run_id, p.label, i.node, p.attempt, p.step, p.seconds, p.ts
FROM main.phases p JOIN (SELECT DISTINCT run_id, label, attempt, node FROM base.identified) i
    ON i.run_id = p.run_id AND i.label = p.label AND i.attempt = p.attempt
WHERE p.phase = 'step';

-- What reasons cost that have no counter on the GPU. A step has the state of the last sample before its end.
CREATE OR REPLACE VIEW base.throttled_by_mask AS
WITH samples AS MATERIALIZED (
    SELECT s.* REPLACE (s.reasons & ~coalesce(t.bits, 0) AS reasons),  -- safeguard: counters-before-mask
           epoch_us(lead(s.ts) OVER of_device) - epoch_us(s.ts) AS next_us,
           CASE WHEN next_us > 10000000 THEN 10.0 ELSE next_us / 1e6 END AS seconds
    FROM (
        SELECT run_id, label, rank, node, device, ts,
               -- safeguard: idle-is-not-throttled
               TRY_CAST(max(value) FILTER (name = 'hw.gpu.throttle.reasons') AS BIGINT) & 252 AS reasons,
               max(value) FILTER (name = 'hw.gpu.clock.sm') AS clock_hz
        FROM main.system WHERE name IN ('hw.gpu.throttle.reasons', 'hw.gpu.clock.sm')
        GROUP BY run_id, label, rank, node, device, ts
    ) s LEFT JOIN (
        SELECT run_id, label, node, device, bit_or(bit) AS bits FROM base.throttle_times
        GROUP BY run_id, label, node, device
    ) t ON t.run_id = s.run_id AND t.label = s.label AND t.node = s.node AND t.device = s.device
    WHERE s.reasons IS NOT NULL
    WINDOW of_device AS (PARTITION BY s.run_id, s.label, s.node, s.device ORDER BY s.ts)
), devices AS (
    SELECT run_id, label, node, device, arg_max(rank, ts) AS rank, sum(seconds) AS sampled_s,
           avg(clock_hz) FILTER (reasons = 0) AS free_clock_hz
    FROM samples GROUP BY run_id, label, node, device HAVING bool_or(reasons <> 0)
), steps AS (
    SELECT run_id, label, node, attempt, step, sum(seconds) AS seconds, max(ts) AS ts
    FROM base.step_parts WHERE (run_id, label) IN (SELECT (run_id, label) FROM devices)
    GROUP BY run_id, label, node, attempt, step
), placed AS (
    SELECT s.run_id, s.label, s.node, s.device, t.reasons, s.seconds
    FROM (SELECT s.*, d.device FROM steps s JOIN devices d USING (run_id, label, node)) s
    ASOF JOIN samples t ON t.run_id = s.run_id AND t.label = s.label AND t.node = s.node AND t.device = s.device
        AND s.ts >= t.ts
    WHERE s.ts - t.ts <= INTERVAL 10 SECOND
), free AS (
    SELECT run_id, label, node, device, median(seconds) AS free_step_s FROM placed WHERE reasons = 0
    GROUP BY run_id, label, node, device
), throttled AS (
    SELECT s.run_id, s.label, s.node, s.device, b.reason, b.bit, sum(s.seconds) AS throttled_s,
           avg(s.clock_hz) AS clock_hz
    FROM samples s JOIN base.throttle_reasons b ON s.reasons & b.bit <> 0
    GROUP BY s.run_id, s.label, s.node, s.device, b.reason, b.bit
), slowed AS (
    SELECT p.run_id, p.label, p.node, p.device, b.bit, count(*) AS n_steps, median(p.seconds) AS step_s,
           sum(p.seconds - f.free_step_s) AS cost_s, sum(p.seconds) AS in_steps_s
    FROM placed p JOIN base.throttle_reasons b ON p.reasons & b.bit <> 0
    LEFT JOIN free f ON f.run_id = p.run_id AND f.label = p.label AND f.node = p.node AND f.device = p.device
    GROUP BY p.run_id, p.label, p.node, p.device, b.bit
)
SELECT d.run_id, d.label, d.rank, d.node, d.device, t.reason, coalesce(t.throttled_s, 0) AS throttled_s, d.sampled_s,
       t.clock_hz, d.free_clock_hz, s.n_steps, s.step_s, f.free_step_s, s.cost_s, s.in_steps_s
FROM throttled t
JOIN devices d ON d.run_id = t.run_id AND d.label = t.label AND d.node = t.node AND d.device = t.device
LEFT JOIN slowed s
    ON s.run_id = t.run_id AND s.label = t.label AND s.node = t.node AND s.device = t.device AND s.bit = t.bit
LEFT JOIN free f ON f.run_id = t.run_id AND f.label = t.label AND f.node = t.node AND f.device = t.device;

-- When a step began, from its end and its seconds, of which hostile ones are bounded.
CREATE OR REPLACE MACRO base.began(ended_at, seconds) AS
ended_at - to_microseconds((1e6 * least(greatest(seconds, 0), 1e9))::BIGINT);

-- What a counter had grown in all at a time: until the last sample before it, and a part of the growth until the next one.
CREATE OR REPLACE MACRO base.total_at(total, growth, since, next_us, at_time) AS
coalesce(total + growth * least((epoch_us(at_time) - epoch_us(since)) / next_us, 1), total, 0);

-- What reasons cost by the counters of their times. A step has what a counter grew between its begin and its end, where the
-- growth between two samples is even, and has the reason if that is more than 1 % of its time: a counter that grows by less
-- slows no step. Thinned samples are an hour apart; in a longer gap the label did not use the GPU.
CREATE OR REPLACE VIEW base.throttled_by_time AS
WITH samples AS MATERIALIZED (
    SELECT *, lead(us) OVER of_counter AS next,
           epoch_us(lead(ts) OVER of_counter) - epoch_us(ts) AS gap_us,
           CASE WHEN gap_us <= 3600000000 THEN gap_us END AS next_us,
           CASE WHEN next_us IS NULL THEN 0 WHEN next >= us THEN next - us
                ELSE least(next, next_us) END AS growth  -- safeguard: counter-begins-again
    FROM base.throttle_times WHERE us >= 0
    WINDOW of_counter AS (PARTITION BY run_id, label, node, device, bit ORDER BY ts)
), throttled AS (
    SELECT run_id, label, node, device, bit, any_value(reason) AS reason, arg_max(rank, ts) AS rank,
           sum(growth) / 1e6 AS throttled_s, sum(next_us) / 1e6 AS sampled_s
    FROM samples GROUP BY run_id, label, node, device, bit HAVING sum(growth) > 0
), clocks AS (
    SELECT k.run_id, k.label, k.node, k.device, k.value AS clock_hz, s.bits
    FROM main.system k JOIN (
        SELECT run_id, label, node, device, ts, bit_or(CASE WHEN growth > 0 THEN bit ELSE 0 END) AS bits FROM samples
        WHERE (run_id, label, node, device) IN (SELECT (run_id, label, node, device) FROM throttled)
        GROUP BY run_id, label, node, device, ts
    ) s ON s.run_id = k.run_id AND s.label = k.label AND s.node = k.node AND s.device = k.device AND s.ts = k.ts
    WHERE k.name = 'hw.gpu.clock.sm'
), totals AS MATERIALIZED (
    SELECT s.*, coalesce(sum(s.growth) OVER (
        PARTITION BY s.run_id, s.label, s.node, s.device, s.bit ORDER BY s.ts
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0)::BIGINT AS total
    FROM samples s SEMI JOIN throttled t
        ON t.run_id = s.run_id AND t.label = s.label AND t.node = s.node AND t.device = s.device AND t.bit = s.bit
), placed AS (
    SELECT p.run_id, p.label, p.node, p.device, p.bit, p.attempt, p.step, sum(p.seconds) AS seconds, sum(
               base.total_at(e.total, e.growth, e.ts, e.next_us, p.ts)
               - base.total_at(b.total, b.growth, b.ts, b.next_us, p.began_at)
           ) / 1e6 AS throttled_s
    FROM (
        SELECT p.*, base.began(p.ts, p.seconds) AS began_at, t.device, t.bit
        FROM base.step_parts p JOIN throttled t ON t.run_id = p.run_id AND t.label = p.label AND t.node = p.node
    ) p ASOF JOIN totals e
        ON e.run_id = p.run_id AND e.label = p.label AND e.node = p.node AND e.device = p.device AND e.bit = p.bit
        AND p.ts >= e.ts
    ASOF LEFT JOIN totals b
        ON b.run_id = p.run_id AND b.label = p.label AND b.node = p.node AND b.device = p.device AND b.bit = p.bit
        AND p.began_at >= b.ts
    WHERE e.next_us IS NOT NULL OR p.ts - e.ts <= INTERVAL 10 SECOND
    GROUP BY p.run_id, p.label, p.node, p.device, p.bit, p.attempt, p.step
), free AS (
    SELECT run_id, label, node, device, median(seconds) AS free_step_s FROM (
        SELECT run_id, label, node, device, any_value(seconds) AS seconds FROM placed
        GROUP BY run_id, label, node, device, attempt, step HAVING bool_and(throttled_s <= 0.01 * seconds)
    ) GROUP BY run_id, label, node, device
), slowed AS (
    SELECT p.run_id, p.label, p.node, p.device, p.bit, sum(p.throttled_s) AS in_steps_s,
           count(*) FILTER (p.throttled_s > 0.01 * p.seconds) AS n_steps,
           median(p.seconds) FILTER (p.throttled_s > 0.01 * p.seconds) AS step_s,
           sum(p.seconds - f.free_step_s) FILTER (p.throttled_s > 0.01 * p.seconds) AS cost_s
    FROM placed p LEFT JOIN free f USING (run_id, label, node, device)
    GROUP BY p.run_id, p.label, p.node, p.device, p.bit
), clocked AS (
    SELECT t.run_id, t.label, t.node, t.device, t.bit, avg(k.clock_hz) FILTER (k.bits & t.bit <> 0) AS clock_hz,
           avg(k.clock_hz) FILTER (k.bits = 0) AS free_clock_hz
    FROM throttled t JOIN clocks k USING (run_id, label, node, device)
    GROUP BY t.run_id, t.label, t.node, t.device, t.bit
)
SELECT t.run_id, t.label, t.rank, t.node, t.device, t.reason, t.throttled_s, t.sampled_s, k.clock_hz, k.free_clock_hz,
       s.n_steps, s.step_s, f.free_step_s, s.cost_s, s.in_steps_s
FROM throttled t
LEFT JOIN clocked k
    ON k.run_id = t.run_id AND k.label = t.label AND k.node = t.node AND k.device = t.device AND k.bit = t.bit
LEFT JOIN slowed s
    ON s.run_id = t.run_id AND s.label = t.label AND s.node = t.node AND s.device = t.device AND s.bit = t.bit
LEFT JOIN free f ON f.run_id = t.run_id AND f.label = t.label AND f.node = t.node AND f.device = t.device;

-- Per run, label, GPU of a node, and reason: how long the GPU was throttled, and what that added to the label's steps: by
-- the counter of the reason's time, else by its bit in the mask of reasons.
CREATE OR REPLACE VIEW throttle_cost AS
SELECT run_id, label, rank, node, device, reason, throttled_s, throttled_s / nullif(sampled_s, 0) AS share, clock_hz,
       free_clock_hz, coalesce(n_steps, 0) AS n_steps, step_s, free_step_s, cost_s, measured_by,
       coalesce(in_steps_s, 0) AS in_steps_s
FROM (
    SELECT *, 'time' AS measured_by FROM base.throttled_by_time
    UNION ALL
    SELECT *, 'mask' FROM base.throttled_by_mask
);

-- When a producer began its steps, as far as that is known: by its phase `step`, else by the phase with the most values,
-- which begins before its row; else by the metric with the most values. The step that it reached last counts whichever
-- series has it: a process that ends in a step leaves no whole phase of it. run_id: of the producer.
CREATE OR REPLACE VIEW base.begun_steps AS
WITH series AS NOT MATERIALIZED (
    SELECT i.run_id, s.producer, s.key, s.is_phase
    FROM (
        SELECT producer, key, n, false AS is_phase FROM base.metric_series
        UNION ALL SELECT producer, key, n, true FROM base.phase_series
    ) s JOIN base.identified i ON i.producer = s.producer JOIN base.names n ON n.id = s.key
    WHERE NOT (s.is_phase AND n.name = 'gc')
    GROUP BY i.run_id, s.producer, s.key, n.name, s.is_phase
    QUALIFY row_number() OVER (
        PARTITION BY i.run_id, s.producer ORDER BY s.is_phase AND n.name = 'step' DESC, s.is_phase DESC, sum(s.n) DESC, s.key
    ) = 1
)
SELECT s.run_id, f.producer, f.step, base.began(f.ts, f.value) AS ts
FROM base.phase_facts f JOIN series s ON s.producer = f.producer AND s.key = f.key AND s.is_phase
UNION ALL
SELECT s.run_id, f.producer, f.step, f.ts
FROM base.metric_facts f JOIN series s ON s.producer = f.producer AND s.key = f.key AND NOT s.is_phase
UNION ALL
SELECT r.run_id, r.producer, r.step, r.ts FROM base.reached_steps r;

-- Time and step are combined into one number, so that of several steps with one time the largest counts.
CREATE OR REPLACE MACRO base.step_order(at_time, of_step) AS epoch_us(at_time)::HUGEINT * 18446744073709551616 + of_step;

-- What GPUs reported, beside the labels that used the GPU then, with the last step that each had begun. A GPU that no label
-- used has no run.
CREATE OR REPLACE VIEW gpu_events AS
SELECT u.run_id, u.label, u.rank, u.node, u.device, u.ts, u.kind, u.level, u.xid, u.message, u.body, b.step
FROM base.gpu_uses u ASOF LEFT JOIN (
    SELECT s.run_id, s.producer, d.node, s.step, base.step_order(s.ts, s.step) AS place
    FROM base.begun_steps s JOIN (SELECT DISTINCT g.run_id, g.producer, g.node FROM base.gpu_uses g) d USING (run_id, producer)
) b ON b.run_id = u.run_id AND b.producer = u.producer AND b.node = u.node
    AND base.step_order(u.ts, 9223372036854775807) >= b.place
UNION ALL
SELECT NULL, NULL, NULL, e.node, e.device, e.ts, e.kind, e.level, TRY_CAST(e.body->>'code' AS INTEGER), e.message, e.body,
       NULL
FROM base.gpu_notices e ANTI JOIN base.gpu_uses u
    ON u.node = e.node AND u.device = e.device AND u.kind = e.kind AND u.ts = e.ts AND u.seq = e.seq;
