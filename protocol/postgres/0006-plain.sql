-- Migration 6: two functions for clients in any language, psql included. A client that calls only these excludes
-- Holdfast and is excluded by it. Older functions of these names that take two texts and return a boolean are replaced.
-- Other functions of these names stay.
--
-- acquire_lock(p_lock_name, p_holder_id, p_ttl_seconds = 30, p_metadata = '{}')
-- Outputs: true: p_holder_id holds the lock for p_ttl_seconds from now. The same holder asking again extends it.
--          false: another holds it, or others wait for it
-- Codes:   22023  an argument is out of range
--
-- release_lock(p_lock_name, p_holder_id)
-- Outputs: true: p_holder_id held the lock, and it is now free. false: it did not hold it, or its time was over
--
-- Call each in a transaction of its own. Until the commit the lock is invisible to other clients, and those that ask
-- for the same name are answered that its state is not known.

DO $$
DECLARE
  v_old REGPROCEDURE;
BEGIN
  FOR v_old IN
    SELECT p.oid FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
      AND p.prokind = 'f' AND p.prorettype = 'boolean'::regtype AND p.pronargs >= 2
      AND p.proargtypes[0] IN ('text'::regtype, 'varchar'::regtype)
      AND p.proargtypes[1] IN ('text'::regtype, 'varchar'::regtype) AND (
      (p.proname = 'acquire_lock' AND pg_get_function_identity_arguments(p.oid) <>
        'p_lock_name character varying, p_holder_id character varying, p_ttl_seconds integer, p_metadata jsonb')
      OR (p.proname = 'release_lock' AND pg_get_function_identity_arguments(p.oid) <>
        'p_lock_name character varying, p_holder_id character varying'))
  LOOP
    EXECUTE 'DROP FUNCTION ' || v_old;
  END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION acquire_lock(
  p_lock_name VARCHAR, p_holder_id VARCHAR, p_ttl_seconds INTEGER DEFAULT 30, p_metadata JSONB DEFAULT '{}'
) RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_row   distributed_locks;
  v_claim holdfast_waiters;
  v_got   RECORD;
BEGIN
  IF p_ttl_seconds IS NULL OR p_ttl_seconds <= 0 THEN
    RAISE EXCEPTION 'p_ttl_seconds must be positive, but is %', p_ttl_seconds USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_lock_name IS NULL OR char_length(p_lock_name) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'p_lock_name must be 1 to 255 characters, but is %', p_lock_name
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_holder_id IS NULL OR char_length(p_holder_id) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'p_holder_id must be 1 to 255 characters, but is %', p_holder_id
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  v_claim.lock_name := p_lock_name;
  v_claim.claim_id := 'plain:' || p_holder_id;
  v_claim.holder_id := p_holder_id;
  v_claim.mode := 'exclusive';
  v_claim.permits := 1;
  v_claim.time_to_live := p_ttl_seconds * interval '1 second';
  v_claim.metadata := p_metadata;
  v_claim.waiting_since := clock_timestamp();
  v_claim.lasts := interval '0';
  -- A held lock is refused without locking its row: that lock would last until the end of the caller's transaction.
  -- (With an older snapshot the current holder is not visible.)
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
    IF NOT (v_row.claim_id IS NULL AND v_row.holder_id = p_holder_id) AND holdfast_is_refused(v_row, v_claim) THEN
      RETURN false;
    END IF;
  END IF;
  v_row := holdfast_lock(p_lock_name, 'change', true);
  IF v_row.lock_name IS NULL THEN
    -- The new row is free, so that it is decided on below like any other, under its lock.
    INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, contended)
    VALUES (p_lock_name, p_holder_id, clock_timestamp(), clock_timestamp(), true)
    ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id;
    v_row := holdfast_lock(p_lock_name, 'change', true);
  END IF;
  IF v_row.mode = 'exclusive' AND v_row.claim_id IS NULL AND v_row.holder_id = p_holder_id
    AND v_row.expires_at > clock_timestamp() THEN
    UPDATE distributed_locks SET expires_at = clock_timestamp() + p_ttl_seconds * interval '1 second',
      metadata = p_metadata,
      acquired_at = least(acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name;
    RETURN true;
  END IF;
  v_got := holdfast_admit(v_row, false, v_claim);
  IF v_got.fencing_token IS NOT NULL THEN
    UPDATE distributed_locks SET claim_id = NULL WHERE lock_name = p_lock_name;
  END IF;
  -- Rows of other names are not swept here: they would stay locked until the end of the caller's transaction.
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_tell(v_got.events);
  END IF;
  RETURN v_got.fencing_token IS NOT NULL;
END
$$;

CREATE OR REPLACE FUNCTION release_lock(p_lock_name VARCHAR, p_holder_id VARCHAR) RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_got RECORD;
BEGIN
  v_got := holdfast_end(p_lock_name, 'plain:' || p_holder_id, NULL, true);
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_tell(v_got.events);
  END IF;
  RETURN v_got.ended;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (6) ON CONFLICT DO NOTHING;
