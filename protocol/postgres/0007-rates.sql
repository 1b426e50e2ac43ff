-- Migration 7: the rate-limiting step (GCRA), under several limits at once: all of them allow it, or none is charged.
--
-- holdfast_consume
-- Inputs:  [{name, cost, limits: [{limit, periodMs, burst}]}]
-- Outputs: [{allowed, remaining, retryAfterMs, resetAfterMs}] in the same order
--
-- What is kept for a limit is one moment: when the bucket will be empty again. A request moves it by its cost, and may not move it
-- further ahead than the burst reaches. Names are taken in one order, so that lists never deadlock; those of one name in the list's order.
CREATE OR REPLACE FUNCTION holdfast_consume(p_requests JSONB, p_relaxed BOOLEAN) RETURNS JSONB
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_request   RECORD;
  v_now       FLOAT8;
  v_arrivals  FLOAT8[];
  v_step      RECORD;
  v_answers   JSONB[] := array_fill(NULL::jsonb, ARRAY[jsonb_array_length(p_requests)]);
  v_rounding  CONSTANT FLOAT8 := 1e-6;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  FOR v_request IN
    SELECT ord, each ->> 'name' AS name, (each ->> 'cost')::float8 AS cost, each -> 'limits' AS limits
    FROM jsonb_array_elements(p_requests) WITH ORDINALITY AS requests (each, ord)
    ORDER BY each ->> 'name' COLLATE "C", ord
  LOOP
    INSERT INTO holdfast_rates AS r VALUES (v_request.name, '{}', clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET expires_at = r.expires_at RETURNING arrivals_ms INTO v_arrivals;
    v_now := extract(epoch FROM clock_timestamp()) * 1000;
    WITH steps AS (
      SELECT ord, spacing, used, spacing * burst AS full, used + spacing * v_request.cost AS wanted FROM (
        SELECT ord, (each ->> 'periodMs')::float8 / (each ->> 'limit')::float8 AS spacing, (each ->> 'burst')::float8 AS burst,
          greatest(coalesce(v_arrivals[ord], 0) - v_now, 0) AS used
        FROM jsonb_array_elements(v_request.limits) WITH ORDINALITY AS limits (each, ord)
      ) AS limits
    ), verdict AS (
      SELECT bool_and(wanted <= steps.full + v_rounding) AS allowed FROM steps
    ), after AS (
      SELECT ord, spacing, steps.full, wanted, allowed, CASE WHEN allowed THEN wanted ELSE used END AS used FROM steps, verdict
    )
    SELECT bool_and(allowed) AS allowed, array_agg(v_now + used ORDER BY ord) AS arrivals,
      min(greatest(0, floor((after.full - used + v_rounding) / spacing))) AS remaining,
      max(wanted - after.full) AS over, max(used) AS used
    INTO v_step FROM after;
    IF v_step.allowed THEN
      UPDATE holdfast_rates SET arrivals_ms = v_step.arrivals,
        expires_at = clock_timestamp() + (v_step.used + 1) * interval '1 ms' WHERE name = v_request.name;
    END IF;
    v_answers[v_request.ord] := jsonb_build_object('allowed', v_step.allowed, 'remaining', v_step.remaining,
      'retryAfterMs', CASE WHEN v_step.allowed THEN 0 ELSE v_step.over END, 'resetAfterMs', v_step.used);
  END LOOP;
  IF random() < 0.125 THEN
    DELETE FROM holdfast_rates WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM holdfast_rates WHERE expires_at < clock_timestamp()
      ORDER BY expires_at LIMIT 16 * jsonb_array_length(p_requests) + 16 FOR UPDATE SKIP LOCKED));
  END IF;
  RETURN to_jsonb(v_answers);
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (7) ON CONFLICT DO NOTHING;
