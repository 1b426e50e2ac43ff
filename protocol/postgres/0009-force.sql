-- Migration 9: ending leases by force, with a record of who did it. It is for people. No client calls it by itself.
--
-- force_release_lock(p_lock_name, p_by)
-- Inputs:  the lock name; who does it and why, as free text
-- Outputs: how many leases were ended: 0 if the lock was free, 1 for an exclusive lease, the number of shared leases
-- Codes:   22023  p_by is empty
--          55P03  another transaction kept the row locked for more than 4 s; nothing was done
-- The next waiters are granted the lock, as after any release. The former holder is not notified. Its next renewal or
-- release answers that the lease is lost, and a resource that checks fencing tokens refuses it from the next grant on.
--
-- holdfast_forced_releases  the leases that were ended this way, the last 1,000 of them

CREATE TABLE IF NOT EXISTS holdfast_forced_releases (
  id            BIGINT       GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  released_at   TIMESTAMPTZ  NOT NULL,
  released_by   TEXT         NOT NULL,
  database_role TEXT         NOT NULL,
  lock_name     VARCHAR(255) COLLATE "C" NOT NULL,
  holder_id     VARCHAR(255) NOT NULL,
  claim_id      TEXT         NOT NULL,
  fencing_token BIGINT,
  acquired_at   TIMESTAMPTZ  NOT NULL,
  expires_at    TIMESTAMPTZ  NOT NULL,
  metadata      JSONB
);

CREATE OR REPLACE FUNCTION force_release_lock(p_lock_name VARCHAR, p_by VARCHAR) RETURNS INTEGER
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now    TIMESTAMPTZ;
  v_lease  RECORD;
  v_claims TEXT[];
  v_claim  TEXT;
  v_last   BIGINT;
  v_events JSONB[];
BEGIN
  IF coalesce(p_by, '') = '' THEN
    RAISE EXCEPTION 'p_by must say who releases it' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE;
  v_now := clock_timestamp();
  -- All current leases are read before any of them is ended: a waiter that is admitted then must keep its lease.
  FOR v_lease IN
    SELECT holder_id, coalesce(claim_id, 'plain:' || holder_id) AS claim_id, fencing_token, acquired_at, expires_at,
      metadata
    FROM distributed_locks WHERE lock_name = p_lock_name AND mode = 'exclusive' AND expires_at > v_now
    UNION ALL
    SELECT l.holder_id, l.claim_id, l.fencing_token, l.acquired_at, l.expires_at, l.metadata
    FROM holdfast_leases l JOIN distributed_locks d USING (lock_name)
    WHERE l.lock_name = p_lock_name AND d.mode = 'shared' AND l.expires_at > v_now
  LOOP
    INSERT INTO holdfast_forced_releases (released_at, released_by, database_role, lock_name, holder_id, claim_id,
      fencing_token,
      acquired_at, expires_at, metadata)
    VALUES (v_now, p_by, session_user, p_lock_name, v_lease.holder_id, v_lease.claim_id, v_lease.fencing_token,
      v_lease.acquired_at, v_lease.expires_at, v_lease.metadata)
    RETURNING id INTO v_last;
    v_claims := v_claims || v_lease.claim_id;
  END LOOP;
  FOREACH v_claim IN ARRAY coalesce(v_claims, '{}') LOOP
    v_events := v_events || (SELECT e.events FROM holdfast_end(p_lock_name, v_claim, NULL, true) AS e);
  END LOOP;
  DELETE FROM holdfast_forced_releases WHERE id <= v_last - 1000;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
  RETURN coalesce(cardinality(v_claims), 0);
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (9) ON CONFLICT DO NOTHING;
