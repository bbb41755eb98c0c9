-- Buckets of {width} steps of each series of some facts. NaN is excluded from minimum, maximum and sum.
SELECT producer, key, {width}::SMALLINT AS width, step - (step % {width} + {width}) % {width} AS step, min(ts) AS ts,
       count(nullif(value, 'nan'::DOUBLE)) AS n_numbers, sum(nullif(value, 'nan'::DOUBLE)) AS sum,
       min(nullif(value, 'nan'::DOUBLE)) AS min, max(nullif(value, 'nan'::DOUBLE)) AS max
FROM facts GROUP BY ALL
