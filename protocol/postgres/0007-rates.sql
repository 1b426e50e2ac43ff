-- Migration 7: rate limits, by the generic cell rate algorithm, under several limits at once: all of them allow it, or none is charged.
-- Outputs: holdfast_rates, holdfast_rate_step, holdfast_consume

-- state: how often the last step was taken, the latest of the moments, and then for each limit its moment: when it will be as if nothing
-- had been taken (ms). policy is only the last step's: a statement that inserts or updates has no other way to hand it on to the row.
CREATE TABLE IF NOT EXISTS holdfast_rates (
  name       TEXT COLLATE "C" PRIMARY KEY,
  state      FLOAT8[]    NOT NULL,
  policy     INTEGER     NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS holdfast_rates_expires_at ON holdfast_rates (expires_at);

-- holdfast_rate_step
-- Inputs:  the state before, or NULL; now (ms); how often to take the step at most; for each limit of a policy what one step moves the
--          limit's moment by, and how far ahead that may be (ms; NULL: the policy has no more limits)
-- Outputs: the state after
CREATE OR REPLACE FUNCTION holdfast_rate_step(
  p_state FLOAT8[], p_now FLOAT8, p_count FLOAT8, p_policy INTEGER, p_steps FLOAT8[], p_fulls FLOAT8[]) RETURNS FLOAT8[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_state FLOAT8[] := ARRAY[p_count, 0];
  v_full  FLOAT8;
  v_ahead FLOAT8;
BEGIN
  FOR j IN 1..array_length(p_fulls, 2) LOOP
    v_full := p_fulls[p_policy][j];
    EXIT WHEN v_full IS NULL;
    v_ahead := greatest(p_state[j + 2] - p_now, 0);
    -- A little further ahead than full is somebody who came to the row first although he asked later: a moment must not go back for that. Much
    -- further can only be a clock that was set back, or limits that were changed: it counts as full.
    IF v_ahead > v_full + 10000 THEN v_ahead := v_full; END IF;
    v_state[j + 2] := v_ahead;
    v_state[1] := greatest(0, least(v_state[1], floor((v_full - v_ahead) / p_steps[p_policy][j])));
  END LOOP;
  FOR j IN 3..array_length(v_state, 1) LOOP
    v_state[j] := p_now + v_state[j] + v_state[1] * p_steps[p_policy][j - 2];
    v_state[2] := greatest(v_state[2], v_state[j]);
  END LOOP;
  RETURN v_state;
END
$$;

-- holdfast_consume
-- Inputs:  names, each once, in the order of their bytes, so that lists never deadlock; for each how often to take its step at most (0: only
--          look), and the number of its policy; the policies as holdfast_rate_step takes them
-- Outputs: the states after in the same order, as one list of numbers with the moments in ms from now
--
-- There is one time for the whole list, taken before any row is waited for. That is safe: in whatever order steps are made, a moment only moves
-- forward, and never further than a step's own time + p_fulls, so no period ever has more than limit + burst. It takes rows that are
-- kept for longer than a statement waits, which is what the margin of expires_at is for. The margin has a second use: as long as
-- expires_at stays the same, an update does not touch the indexes.
CREATE OR REPLACE FUNCTION holdfast_consume(
  p_names TEXT[], p_counts INTEGER[], p_policies INTEGER[], p_steps FLOAT8[], p_fulls FLOAT8[], p_relaxed BOOLEAN) RETURNS FLOAT8[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' AS $$
DECLARE
  v_at     TIMESTAMPTZ := clock_timestamp();
  v_now    FLOAT8 := extract(epoch FROM v_at) * 1000;
  v_answer FLOAT8[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  WITH done AS (
    INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
    SELECT name, state, policy, v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms'
    FROM (
      SELECT name, policy, holdfast_rate_step(NULL, v_now, count, policy, p_steps, p_fulls) AS state
      FROM unnest(p_names, p_counts, p_policies) AS asked (name, count, policy)
      OFFSET 0
    ) AS fresh
    ON CONFLICT (name) DO UPDATE SET (state, policy, expires_at) = (
      SELECT state, excluded.policy, CASE WHEN r.expires_at >= v_at + interval '5 s' + (state[2] - v_now) * interval '1 ms'
        THEN r.expires_at ELSE v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms' END
      FROM (
        SELECT holdfast_rate_step(r.state, v_now, excluded.state[1], excluded.policy, p_steps, p_fulls) AS state
        OFFSET 0
      ) AS next
    )
    RETURNING state
  )
  SELECT array_agg(CASE WHEN place = 1 THEN each ELSE each - v_now END)
  INTO v_answer FROM done, unnest(state) WITH ORDINALITY AS parts (each, place) WHERE place <> 2;
  IF random() < 0.25 THEN
    DELETE FROM holdfast_rates WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM holdfast_rates WHERE expires_at < clock_timestamp()
      ORDER BY expires_at LIMIT 8 * cardinality(p_names) + 16 FOR UPDATE SKIP LOCKED));
  END IF;
  RETURN v_answer;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (7) ON CONFLICT DO NOTHING;
