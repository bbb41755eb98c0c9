WITH chosen AS (
    SELECT * FROM labels WHERE run_id = $run
    QUALIFY row_number() OVER (PARTITION BY label ORDER BY attempt DESC) = 1
), logged AS (
    SELECT label, attempt, key, max(step) AS step,
           CASE WHEN isfinite(arg_max(value, seq)) THEN to_json(arg_max(value, seq))
                ELSE to_json(arg_max(value, seq)::VARCHAR) END AS json_value
    FROM metrics WHERE run_id = $run GROUP BY label, attempt, key ORDER BY key
), last_logged AS (
    SELECT label, attempt, max(step) AS last_step, json_group_object(key, json_value) AS last_values
    FROM logged GROUP BY label, attempt
), printed AS (
    SELECT label, attempt, string_agg(line, chr(10) ORDER BY line_no) AS last_lines
    FROM (
        SELECT label, attempt, line_no, line FROM console WHERE run_id = $run
        QUALIFY row_number() OVER (PARTITION BY label, attempt ORDER BY line_no DESC) <= 5
    ) GROUP BY label, attempt
)
SELECT c.label, c.attempt, c.rank, c.node, c.is_primary, c.state, c.exit_code, c.exit_signal, c.reason,
       c.started_at, c.ended_at, l.last_step, l.last_values, p.last_lines
FROM chosen c
LEFT JOIN last_logged l ON l.label = c.label AND l.attempt = c.attempt
LEFT JOIN printed p ON p.label = c.label AND p.attempt = c.attempt
