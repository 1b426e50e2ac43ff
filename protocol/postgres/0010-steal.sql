-- Migration 10: a claim that takes the lock from its holders.
--
-- holdfast_steal
-- Inputs:  lock name, claim id, holder id, time to live in ms, metadata as JSON text (NULL: none), relaxed as in
--          holdfast_acquire, the largest fencing token that it may end (NULL: any)
-- Outputs: fencing_token, and granted_at in ms, of its lease. Both are NULL if the name has a lease with a larger token
--          than it may end; then nothing is changed
-- Codes:   55P03  another transaction kept the row locked for too long; nothing was done
-- Every lease on the name is ended, including a plain client's. Each is recorded in holdfast_forced_releases, as
-- released by the new holder or by what the metadata has under forcedBy. Waiters keep their places. Asking again with
-- the same claim id returns the same lease, renewed for its time to live.
-- Holders that lost a lease are notified on the channel holdfast_stolen: {"lost": [claim id, …], "by": holder id}, with
-- at most 50 claim ids in one message.
CREATE OR REPLACE FUNCTION holdfast_steal(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN, p_up_to BIGINT,
  OUT fencing_token BIGINT, OUT granted_at FLOAT8
)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_row    distributed_locks;
  v_now    TIMESTAMPTZ := clock_timestamp();
  v_ttl    INTERVAL := p_ttl * interval '1 ms';
  v_last   BIGINT;
  v_events JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  PERFORM holdfast_raise_tokens();

  -- From here on the name has a row, and it is locked.
  v_row := holdfast_lock(p_lock_name, 'change', true);
  IF v_row.lock_name IS NULL THEN
    INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at)
    VALUES (p_lock_name, p_holder_id, v_now, v_now)
    ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id;
    v_row := holdfast_lock(p_lock_name, 'change', true);
  END IF;
  v_now := clock_timestamp();

  IF v_row.mode = 'exclusive' AND v_row.claim_id = p_claim_id AND v_row.expires_at > v_now THEN
    UPDATE distributed_locks SET expires_at = v_now + v_ttl, lasts = v_ttl, acquired_at = least(acquired_at, v_now)
    WHERE lock_name = p_lock_name;
    fencing_token := v_row.fencing_token;
    granted_at := extract(epoch FROM v_row.acquired_at) * 1000;
    RETURN;
  END IF;

  IF (v_row.mode = 'exclusive' AND v_row.expires_at > v_now AND v_row.fencing_token > p_up_to)
    OR (v_row.mode = 'shared' AND EXISTS (
      SELECT FROM holdfast_leases
      WHERE lock_name = p_lock_name AND expires_at > v_now AND holdfast_leases.fencing_token > p_up_to
    ))
  THEN
    RETURN;
  END IF;

  WITH ended AS (
    SELECT v_row.holder_id, coalesce(v_row.claim_id, 'plain:' || v_row.holder_id) AS claim_id, v_row.fencing_token,
      v_row.acquired_at, v_row.expires_at, v_row.metadata
    WHERE v_row.mode = 'exclusive' AND v_row.expires_at > v_now
    UNION ALL
    SELECT holder_id, claim_id, fencing_token, acquired_at, expires_at, metadata
    FROM holdfast_leases WHERE lock_name = p_lock_name AND v_row.mode = 'shared' AND expires_at > v_now
  ), recorded AS (
    INSERT INTO holdfast_forced_releases (released_at, released_by, database_role, lock_name, holder_id, claim_id,
      fencing_token,
      acquired_at, expires_at, metadata)
    SELECT v_now, coalesce(p_metadata::jsonb ->> 'forcedBy', p_holder_id), session_user, p_lock_name, ended.* FROM ended
    RETURNING id, claim_id
  ), parts AS (
    SELECT jsonb_agg(claim_id) AS lost, max(id) AS last
    FROM (SELECT *, row_number() OVER () AS number FROM recorded) AS r GROUP BY number / 50
  ), told AS (
    SELECT CASE WHEN holdfast_may_notify()
      THEN pg_notify('holdfast_stolen', jsonb_build_object('lost', lost, 'by', p_holder_id)::text) END, last FROM parts
  )
  SELECT max(last) INTO v_last FROM told;
  DELETE FROM holdfast_forced_releases WHERE id <= v_last - 1000;
  DELETE FROM holdfast_leases WHERE lock_name = p_lock_name;
  DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id;

  -- contended stays as it is: if there are no waiters any more, the next release finds that out.
  UPDATE distributed_locks SET mode = 'exclusive', claim_id = p_claim_id, holder_id = p_holder_id,
    metadata = p_metadata::jsonb,
    fencing_token = nextval('holdfast_tokens'), acquired_at = v_now, expires_at = v_now + v_ttl, lasts = v_ttl
  WHERE lock_name = p_lock_name RETURNING fencing_token INTO fencing_token;
  granted_at := extract(epoch FROM v_now) * 1000;
  -- The first waiter knows when the lease before this one would have ended. This one may end sooner.
  v_events := CASE WHEN v_row.contended THEN holdfast_first(p_lock_name, NULL) END;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (10) ON CONFLICT DO NOTHING;
