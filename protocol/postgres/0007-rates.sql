-- Migration 7: rate limits, by the generic cell rate algorithm. A request may have several limits: it is charged under
-- all of them, or under none. protocol/README.md defines the numbers.
-- Outputs: holdfast_rates, holdfast_rate_limits, holdfast_rate_step, holdfast_consume

-- One row for each name. The elements of state are, in this order:
--   how often the last step was taken (-1 and below: refused, see holdfast_rate_step)
--   the latest of all moments and ends of blocks (ms)
--   the number of limits
--   for each limit the three numbers of its id: the limit, its period in whole microseconds, its burst
--   for each limit its moment (ms): when it will be as if nothing had been taken
--   only while one of them is blocked (0012-rate-changes.sql): for each limit the end of its block (ms; 0: not
--     blocked), then for each limit the length of its block in ms
-- The limits of the last step come first, in their order. The others are limits that were used with the same name and
-- have not run out.
-- policy is that of the last step: a statement that inserts or updates has no other way to pass it to the row.
CREATE TABLE IF NOT EXISTS holdfast_rates (
  name       TEXT COLLATE "C" PRIMARY KEY,
  state      FLOAT8[]    NOT NULL,
  policy     INTEGER     NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 70);
DO $$
BEGIN
  IF to_regclass('holdfast_rates_expires_at') IS NULL THEN
    CREATE INDEX holdfast_rates_expires_at ON holdfast_rates (expires_at);
  END IF;
END
$$;
-- An earlier version kept moments without the ids of their limits. They cannot be assigned any more: those limits start
-- again.
DELETE FROM holdfast_rates WHERE (cardinality(state) IN (3 + 4 * state[3], 3 + 6 * state[3])) IS NOT TRUE;

-- holdfast_rate_limits
-- Inputs:  the state before; now (ms); where the policy begins in the list of policies; the policies, as
--          holdfast_rate_step takes them
-- Outputs: the state from its third element on, as of a row with a block. The policy's limits come first, in their
--          order; the moment of a new one is 0. Limits that are not in the policy keep their moments and blocks. Those
--          that ran out more than ten seconds ago are dropped, as a row would be. NULL if more than 32 limits are left
CREATE OR REPLACE FUNCTION holdfast_rate_limits(
  p_state FLOAT8[], p_now FLOAT8, p_policy INTEGER, p_policies FLOAT8[]) RETURNS FLOAT8[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_known   INTEGER  := p_state[3];
  v_own     INTEGER  := p_policies[p_policy];
  v_ids     FLOAT8[] := p_policies[p_policy + 1 : p_policy + 3 * v_own];
  v_moments FLOAT8[] := array_fill(0::FLOAT8, ARRAY[v_own]);
  v_untils  FLOAT8[] := v_moments;
  v_lengths FLOAT8[] := v_moments;
  v_moment  FLOAT8;
  v_until   FLOAT8;
  v_length  FLOAT8;
  v_is_own  BOOLEAN;
BEGIN
  FOR k IN 1..v_known LOOP
    v_moment := p_state[3 + 3 * v_known + k];
    v_until := coalesce(p_state[3 + 4 * v_known + k], 0);
    v_length := coalesce(p_state[3 + 5 * v_known + k], 0);
    v_is_own := false;
    FOR j IN 1..v_own LOOP
      IF v_ids[3 * j - 2 : 3 * j] = p_state[3 * k + 1 : 3 * k + 3] THEN
        v_moments[j] := v_moment;
        v_untils[j] := v_until;
        v_lengths[j] := v_length;
        v_is_own := true;
      END IF;
    END LOOP;
    IF NOT v_is_own AND greatest(v_moment, v_until) > p_now - 10000 THEN
      v_ids := v_ids || p_state[3 * k + 1 : 3 * k + 3];
      v_moments := v_moments || v_moment;
      v_untils := v_untils || v_until;
      v_lengths := v_lengths || v_length;
    END IF;
  END LOOP;
  IF cardinality(v_moments) > 32 THEN RETURN NULL; END IF;
  RETURN cardinality(v_moments)::FLOAT8 || v_ids || v_moments || v_untils || v_lengths;
END
$$;

-- holdfast_rate_step
-- Inputs:  the state before, or NULL; now (ms); how often to take the step at most (0: only look); where the policy
--          begins in the list of policies; the policies. A policy is the number of its limits, then for each limit the
--          three numbers of its id, then for each limit by how much one step moves its moment and how far ahead of now
--          the moment may be (both in ms)
-- Outputs: the state after. If the name has too many limits: the state before, with -1 as its first element. If one of
--          the policy's limits is blocked for n ms, no step is taken, and the first element is -1 - n
CREATE OR REPLACE FUNCTION holdfast_rate_step(
  p_state FLOAT8[], p_now FLOAT8, p_count FLOAT8, p_policy INTEGER, p_policies FLOAT8[]) RETURNS FLOAT8[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_own     INTEGER := p_policies[p_policy];
  v_steps   INTEGER := p_policy + 3 * v_own;
  v_all     INTEGER;
  v_full    FLOAT8;
  v_ahead   FLOAT8;
  v_count   FLOAT8;
  v_latest  FLOAT8;
  v_limits  FLOAT8[];
  v_moments FLOAT8[];
  v_untils  FLOAT8[];
  v_lengths FLOAT8[];
  v_blocked FLOAT8 := 0;
BEGIN
  -- The common case: one limit and no block. It is a deliberate copy of the loop below without its arrays, because this
  -- call is most of what a step costs. test/drivers/postgres/equal-paths.test.ts keeps the two equal.
  -- A moment that is slightly further ahead than full is due to a statement that began later but reached the row first.
  -- It must not be moved back for that. One that is much further ahead is due to a clock that was set back. It counts
  -- as full.
  IF v_own = 1 AND (p_state IS NULL OR p_state[8] IS NULL AND p_state[3:6] = p_policies[p_policy : v_steps]) THEN
    v_full := p_policies[v_steps + 2];
    v_ahead := greatest(p_state[7] - p_now, 0);
    IF v_ahead > v_full + 10000 THEN v_ahead := v_full; END IF;
    v_count := greatest(0, least(p_count, floor((v_full - v_ahead) / p_policies[v_steps + 1])));
    v_ahead := p_now + v_ahead + v_count * p_policies[v_steps + 1];
    RETURN ARRAY[v_count, v_ahead, 1, p_policies[v_steps - 2], p_policies[v_steps - 1], p_policies[v_steps], v_ahead];
  END IF;

  v_limits := p_policies[p_policy : v_steps];
  IF p_state[3 : 3 + 3 * v_own] = v_limits AND p_state[4 + 4 * v_own] IS NULL THEN
    v_moments := p_state[4 + 3 * v_own : 3 + 4 * v_own];
  ELSIF p_state IS NOT NULL THEN
    v_limits := holdfast_rate_limits(p_state, p_now, p_policy, p_policies);
    IF v_limits IS NULL THEN
      p_state[1] := -1;
      RETURN p_state;
    END IF;
    v_all := v_limits[1];
    v_moments := v_limits[2 + 3 * v_all : 1 + 4 * v_all];
    v_untils := v_limits[2 + 4 * v_all : 1 + 5 * v_all];
    v_lengths := v_limits[2 + 5 * v_all : 1 + 6 * v_all];
    v_limits := v_limits[1 : 1 + 3 * v_all];
    FOR j IN v_own + 1..v_all LOOP v_latest := greatest(v_latest, v_moments[j], v_untils[j]); END LOOP;
  END IF;
  v_count := p_count;
  FOR j IN 1..v_own LOOP
    v_full := p_policies[v_steps + 2 * j];
    v_ahead := greatest(v_moments[j] - p_now, 0);
    IF v_ahead > v_full + 10000 THEN v_ahead := v_full; END IF;
    v_moments[j] := v_ahead;
    v_count := greatest(0, least(v_count, floor((v_full - v_ahead) / p_policies[v_steps + 2 * j - 1])));
    -- As for a moment: a block lasts no longer than its length from now.
    IF v_untils[j] > p_now + v_lengths[j] + 10000 THEN v_untils[j] := p_now + v_lengths[j]; END IF;
    v_blocked := greatest(v_blocked, v_untils[j] - p_now);
  END LOOP;
  IF v_blocked > 0 THEN v_count := 0; END IF;
  FOR j IN 1..v_own LOOP
    v_ahead := p_now + v_moments[j] + v_count * p_policies[v_steps + 2 * j - 1];
    v_moments[j] := v_ahead;
    v_latest := greatest(v_latest, v_ahead, v_untils[j]);
  END LOOP;
  RETURN ARRAY[CASE WHEN v_blocked > 0 THEN -1 - v_blocked ELSE v_count END, v_latest] || v_limits || v_moments
    || CASE WHEN p_now < ANY (v_untils) THEN v_untils || v_lengths END;
END
$$;

-- holdfast_consume
-- Inputs:  names, each once; for each how often to take its step at most (0: only look), and where its policy begins;
--          the policies, as holdfast_rate_step takes them. Names that take a step come first, sorted byte by byte, so
--          that lists never deadlock
-- Outputs: one list of numbers. For each name, in the same order:
--            how often its step was taken; or -1: it has too many limits; or -1 - n: a limit is blocked for n ms
--            the number of its limits
--            for each of them, the policy's first, how far ahead of now its moment is (ms)
--
-- A look writes nothing.
--
-- The time is read once for the list, before any row is waited for. That is safe. In whichever order steps are taken, a
-- moment only moves forward, and never further than a step's own time plus how far ahead it may be. So no period ever
-- allows more than limit + burst. This relies on moments being kept for longer than a statement waits, which the margin
-- of expires_at ensures. The margin also saves work: as long as expires_at stays the same, an update does not touch the
-- indexes.
CREATE OR REPLACE FUNCTION holdfast_consume(
  p_names TEXT[], p_counts INTEGER[], p_chosen INTEGER[], p_policies FLOAT8[], p_relaxed BOOLEAN) RETURNS FLOAT8[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' AS $$
DECLARE
  v_at     TIMESTAMPTZ := clock_timestamp();
  v_now    FLOAT8 := extract(epoch FROM v_at) * 1000;
  v_answer FLOAT8[];
  v_looked FLOAT8[];
BEGIN
  IF 0 = ANY (p_counts) THEN
    WITH looked AS MATERIALIZED (
      SELECT holdfast_rate_step(
        (SELECT r.state FROM holdfast_rates AS r WHERE r.name = asked.name), v_now, 0, policy, p_policies) AS state
      FROM unnest(p_names, p_counts, p_chosen) AS asked (name, count, policy)
      WHERE count = 0
    )
    SELECT array_agg(CASE WHEN place <= 3 THEN each ELSE each - v_now END)
    INTO v_looked FROM looked, unnest(state) WITH ORDINALITY AS parts (each, place)
    WHERE place IN (1, 3) OR place BETWEEN 4 + 3 * state[3] AND 3 + 4 * state[3];
    IF 0 = ALL (p_counts) THEN RETURN v_looked; END IF;
  END IF;

  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  WITH done AS (
    INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
    SELECT name, state, policy, v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms'
    FROM (
      SELECT name, policy, holdfast_rate_step(NULL, v_now, count, policy, p_policies) AS state
      FROM unnest(p_names, p_counts, p_chosen) AS asked (name, count, policy)
      WHERE count > 0
      OFFSET 0
    ) AS fresh
    ON CONFLICT (name) DO UPDATE SET (state, policy, expires_at) = (
      SELECT state, excluded.policy,
        CASE WHEN r.expires_at >= v_at + interval '5 s' + (state[2] - v_now) * interval '1 ms'
        THEN r.expires_at ELSE v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms' END
      FROM (
        SELECT holdfast_rate_step(r.state, v_now, excluded.state[1], excluded.policy, p_policies) AS state
        OFFSET 0
      ) AS next
    )
    RETURNING state
  )
  SELECT array_agg(CASE WHEN place <= 3 THEN each ELSE each - v_now END)
  INTO v_answer FROM done, unnest(state) WITH ORDINALITY AS parts (each, place)
  WHERE place IN (1, 3) OR place BETWEEN 4 + 3 * state[3] AND 3 + 4 * state[3];
  IF random() < 0.25 THEN
    DELETE FROM holdfast_rates WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM holdfast_rates WHERE expires_at < clock_timestamp()
      ORDER BY expires_at LIMIT 8 * cardinality(p_names) + 16 FOR UPDATE SKIP LOCKED));
  END IF;
  RETURN v_answer || v_looked;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (7) ON CONFLICT DO NOTHING;
