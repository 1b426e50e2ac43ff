-- Migration 12: rate limits can be reset and blocked.
-- Outputs: holdfast_change_rate, holdfast_call_change_rate

-- holdfast_change_rate
-- Inputs:  a name; a policy, as holdfast_rate_step takes it; for how many ms its limits are blocked from now on,
--          replacing any earlier block (0: ends a block), or NULL: resets the limits and ends a block
-- Outputs: as holdfast_consume for a name that only looks, after the change
--
-- Limits that are not in the policy stay as they are.
CREATE OR REPLACE FUNCTION holdfast_change_rate(
  p_name TEXT, p_policy FLOAT8[], p_block FLOAT8, p_relaxed BOOLEAN) RETURNS FLOAT8[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' AS $$
DECLARE
  v_at     TIMESTAMPTZ;
  v_now    FLOAT8;
  v_own    INTEGER := p_policy[1];
  v_all    INTEGER;
  v_state  FLOAT8[];
  v_limits FLOAT8[];
  v_latest FLOAT8 := 0;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  -- The row is created if there is none, and is locked either way: a concurrent step comes before this or after it.
  INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
  VALUES (p_name, holdfast_rate_step(NULL, 0, 0, 1, p_policy), 1, clock_timestamp() + interval '10 s')
  ON CONFLICT (name) DO UPDATE SET policy = excluded.policy
  RETURNING state INTO v_state;
  v_at := clock_timestamp();
  v_now := extract(epoch FROM v_at) * 1000;
  v_limits := holdfast_rate_limits(v_state, v_now, 1, p_policy);
  IF v_limits IS NULL THEN RETURN ARRAY[-1, 0]; END IF;
  v_all := v_limits[1];
  FOR j IN 1..v_own LOOP
    IF p_block IS NULL THEN v_limits[1 + 3 * v_all + j] := 0; END IF;
    v_limits[1 + 4 * v_all + j] := CASE WHEN p_block > 0 THEN v_now + p_block ELSE 0 END;
    v_limits[1 + 5 * v_all + j] := coalesce(p_block, 0);
  END LOOP;
  FOR j IN 1..v_all LOOP
    v_latest := greatest(v_latest, v_limits[1 + 3 * v_all + j], v_limits[1 + 4 * v_all + j]);
  END LOOP;
  -- The step drops what no limit needs any more.
  v_state := holdfast_rate_step(ARRAY[0, v_latest] || v_limits, v_now, 0, 1, p_policy);
  -- The ten seconds for which a row is kept: a step that waits for this one counts from an earlier time.
  IF v_latest <= v_now - 10000 THEN
    DELETE FROM holdfast_rates WHERE name = p_name;
  ELSE
    UPDATE holdfast_rates
    SET state = v_state, expires_at = v_at + interval '10 s' + greatest(v_latest - v_now, 0) * interval '1.25 ms'
    WHERE name = p_name;
  END IF;
  RETURN ARRAY[v_state[1], v_own] || ARRAY(
    SELECT greatest(v_state[3 + 3 * v_all + j] - v_now, 0) FROM generate_series(1, v_own) AS j ORDER BY j);
END
$$;

-- holdfast_call_change_rate
-- Inputs, outputs, codes: as the procedures of 0011-calls.sql
DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_change_rate(
  p_name TEXT, p_policy FLOAT8[], p_block FLOAT8, p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  answers := %1$I.holdfast_change_rate(p_name, p_policy, p_block, p_relaxed)::text;
END
$$;
$sql$, current_schema());
END
$do$;

INSERT INTO holdfast_migrations (version) VALUES (12) ON CONFLICT DO NOTHING;
