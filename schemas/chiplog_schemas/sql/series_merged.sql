-- The same of rows that are themselves results of series.sql, for disjoint facts.
SELECT producer, key, sum(n)::BIGINT AS n, sum(n_numbers)::BIGINT AS n_numbers,
       CASE WHEN isfinite(fsum(sum)) THEN fsum(sum) ELSE sum(sum) END AS sum, min(min) AS min, max(max) AS max,
       min(first_seq) AS first_seq, arg_min(first, first_seq) AS first, max(last_seq) AS last_seq,
       arg_max(last, last_seq) AS last, min(first_step) AS first_step, max(last_step) AS last_step,
       max_by(last_step_ts, last_step::HUGEINT * 1152921504606846976 - epoch_us(last_step_ts)) AS last_step_ts,
       min(first_ts) AS first_ts, max(last_ts) AS last_ts
FROM parts GROUP BY producer, key
