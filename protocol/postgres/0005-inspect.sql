-- Migration 5: reading the state.
--
-- holdfast_lease_json(row)
-- Inputs:  a row of distributed_locks or of holdfast_leases
-- Outputs: the lease as JSON, with the names that the driver interface uses
--
-- holdfast_inspect(p_lock_name, p_prefix, p_after, p_page_size)
-- Inputs:  only this name (NULL: any); only names with this prefix; only names after this one, byte by byte (NULL:
--          all); the maximum number of names
-- Outputs: {leases, waiters, next}; next is missing on the last page
--
-- holdfast_locks
-- A view for people: holders and waiters, since when, and when each of them expires.

CREATE OR REPLACE FUNCTION holdfast_lease_json(p_row distributed_locks) RETURNS JSONB
LANGUAGE sql STABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object(
    'lockName', p_row.lock_name,
    'claimId', coalesce(p_row.claim_id, 'plain:' || p_row.holder_id),
    'holderId', p_row.holder_id, 'mode', 'exclusive', 'permits', 1,
    'fencingToken', coalesce(p_row.fencing_token, 0),
    'acquiredAtMs', extract(epoch FROM p_row.acquired_at) * 1000,
    'expiresAtMs', extract(epoch FROM p_row.expires_at) * 1000
  )) || CASE WHEN p_row.metadata IS NULL THEN '{}' ELSE jsonb_build_object('metadata', p_row.metadata) END
$$;

CREATE OR REPLACE FUNCTION holdfast_lease_json(p_row holdfast_leases) RETURNS JSONB
LANGUAGE sql STABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object(
    'lockName', p_row.lock_name, 'claimId', p_row.claim_id, 'holderId', p_row.holder_id,
    'mode', 'shared', 'limit', p_row.max_permits, 'permits', p_row.permits, 'fencingToken', p_row.fencing_token,
    'acquiredAtMs', extract(epoch FROM p_row.acquired_at) * 1000,
    'expiresAtMs', extract(epoch FROM p_row.expires_at) * 1000
  )) || CASE WHEN p_row.metadata IS NULL THEN '{}' ELSE jsonb_build_object('metadata', p_row.metadata) END
$$;

CREATE OR REPLACE FUNCTION holdfast_inspect(
  p_lock_name TEXT, p_prefix TEXT, p_after TEXT, p_page_size INTEGER
) RETURNS JSONB
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_now     TIMESTAMPTZ := clock_timestamp();
  v_names   TEXT[];
  v_leases  JSONB;
  v_waiters JSONB;
  v_more    BOOLEAN;
BEGIN
  IF p_lock_name IS NOT NULL THEN
    -- Only by the index: a query for one name must not cost as much as one for all.
    v_names := CASE WHEN starts_with(p_lock_name, p_prefix)
      AND (p_after IS NULL OR p_lock_name COLLATE "C" > p_after) THEN ARRAY[p_lock_name] ELSE '{}' END;
  ELSE
    SELECT array_agg(lock_name) INTO v_names FROM (
      SELECT lock_name COLLATE "C" AS lock_name FROM distributed_locks
      WHERE (expires_at > v_now OR contended)
        AND lock_name COLLATE "C" >= p_prefix AND (p_after IS NULL OR lock_name COLLATE "C" > p_after)
        AND starts_with(lock_name, p_prefix)
        AND (expires_at > v_now OR EXISTS (
          SELECT FROM holdfast_waiters w WHERE w.lock_name = distributed_locks.lock_name AND w.expires_at > v_now))
      ORDER BY 1 LIMIT p_page_size + 1
    ) AS page;
  END IF;
  v_more := cardinality(v_names) > p_page_size;
  v_names := v_names[1 : p_page_size];

  SELECT jsonb_agg(lease ORDER BY lease ->> 'lockName' COLLATE "C", (lease ->> 'fencingToken')::bigint)
  INTO v_leases FROM (
    SELECT holdfast_lease_json(d) AS lease FROM distributed_locks d
    WHERE d.lock_name = ANY (v_names) AND d.mode = 'exclusive' AND d.expires_at > v_now
    UNION ALL
    SELECT holdfast_lease_json(l) FROM holdfast_leases l JOIN distributed_locks d USING (lock_name)
    WHERE l.lock_name = ANY (v_names) AND d.mode = 'shared' AND l.expires_at > v_now
  ) AS leases;
  SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
    'lockName', w.lock_name, 'claimId', w.claim_id, 'holderId', w.holder_id, 'mode', w.mode, 'limit', w.max_permits,
    'permits', w.permits, 'waitingSinceMs', extract(epoch FROM w.waiting_since) * 1000)) ORDER BY w.lock_name, w.place)
  INTO v_waiters FROM holdfast_waiters w WHERE w.lock_name = ANY (v_names) AND w.expires_at > v_now;
  RETURN jsonb_build_object('leases', coalesce(v_leases, '[]'), 'waiters', coalesce(v_waiters, '[]'))
    || CASE WHEN v_more THEN jsonb_build_object('next', v_names[p_page_size]) ELSE '{}' END;
END
$$;

CREATE OR REPLACE VIEW holdfast_locks AS
  SELECT lock_name, 'holds' AS state, mode, holder_id, claim_id, fencing_token, acquired_at AS since,
    CASE WHEN isfinite(acquired_at) THEN clock_timestamp() - acquired_at END AS age,
    CASE WHEN isfinite(expires_at) THEN expires_at - clock_timestamp() END AS expires_in, metadata
  FROM distributed_locks WHERE mode = 'exclusive' AND expires_at > clock_timestamp()
  UNION ALL
  SELECT l.lock_name, 'holds', 'shared', l.holder_id, l.claim_id, l.fencing_token, l.acquired_at,
    clock_timestamp() - l.acquired_at, l.expires_at - clock_timestamp(), l.metadata
  FROM holdfast_leases l JOIN distributed_locks d USING (lock_name)
  WHERE d.mode = 'shared' AND l.expires_at > clock_timestamp()
  UNION ALL
  SELECT lock_name, 'waits', mode, holder_id, claim_id, NULL, waiting_since,
    clock_timestamp() - waiting_since, expires_at - clock_timestamp(), metadata
  FROM holdfast_waiters WHERE expires_at > clock_timestamp();

INSERT INTO holdfast_migrations (version) VALUES (5) ON CONFLICT DO NOTHING;
