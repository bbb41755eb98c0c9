-- What is known of each series (producer and key) of some facts. NaN is excluded from minimum, maximum and sum. Of the
-- rows with the largest step the earliest time counts; 2^60 exceeds any time in microseconds.
-- fsum() keeps more digits than sum(), and makes NaN of infinities.
SELECT producer, key, count(*) AS n, count(nullif(value, 'nan'::DOUBLE)) AS n_numbers,
       CASE WHEN isfinite(fsum(nullif(value, 'nan'::DOUBLE))) THEN fsum(nullif(value, 'nan'::DOUBLE)) ELSE sum(nullif(value, 'nan'::DOUBLE)) END AS sum,
       min(nullif(value, 'nan'::DOUBLE)) AS min, max(nullif(value, 'nan'::DOUBLE)) AS max,
       min(seq) AS first_seq, arg_min(value, seq) AS first, max(seq) AS last_seq,
       arg_max(value, seq) AS last,  -- safeguard: last-value-by-seq
       min(step) AS first_step, max(step) AS last_step,
       max_by(ts, step::HUGEINT * 1152921504606846976 - epoch_us(ts)) AS last_step_ts, min(ts) AS first_ts, max(ts) AS last_ts
FROM facts GROUP BY producer, key
