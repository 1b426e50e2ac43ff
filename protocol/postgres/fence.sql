-- The fencing guard. Call it in the transaction that writes to the protected resource. It needs none of the other
-- files: it can be run alone, on a database that has the protected data but no locks. Safe to run again.
--
-- holdfast_fence(p_resource, p_token)
-- Inputs:  a name for what is protected; the fencing token of the lease under which it is written
-- Outputs: none. The resource's row stays locked until the transaction ends, so a write that was let through is done
--          before the next one is judged
-- Codes:   HF001  the resource has seen a larger token: the holder of this one has lost its lease
--
-- holdfast_forget_fences(p_unused_for)
-- Inputs:  for how long a resource must not have been written to
-- Outputs: how many resources were forgotten. Nothing calls this for you: only you know how long a process may sleep

-- The largest token that each protected resource has seen.
CREATE TABLE IF NOT EXISTS holdfast_fences (
  resource      TEXT COLLATE "C" PRIMARY KEY,
  fencing_token BIGINT      NOT NULL,
  seen_at       TIMESTAMPTZ NOT NULL
);

CREATE OR REPLACE FUNCTION holdfast_fence(p_resource TEXT, p_token BIGINT) RETURNS VOID
LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_largest BIGINT;
BEGIN
  INSERT INTO holdfast_fences AS f VALUES (p_resource, p_token, clock_timestamp())
  ON CONFLICT (resource) DO UPDATE SET fencing_token = excluded.fencing_token, seen_at = excluded.seen_at
  WHERE f.fencing_token <= excluded.fencing_token;
  IF NOT FOUND THEN
    SELECT fencing_token INTO v_largest FROM holdfast_fences WHERE resource = p_resource;
    RAISE EXCEPTION 'the fencing token % is stale: "%" has seen %', p_token, p_resource, v_largest
      USING ERRCODE = 'HF001', DETAIL = v_largest::text, HINT = 'The lease under which this is written was lost.';
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_forget_fences(p_unused_for INTERVAL) RETURNS BIGINT
LANGUAGE sql SET search_path FROM CURRENT AS $$
  WITH forgotten AS (DELETE FROM holdfast_fences WHERE seen_at < clock_timestamp() - p_unused_for RETURNING 1)
  SELECT count(*) FROM forgotten
$$;
