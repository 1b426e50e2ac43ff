-- Migration 14: one claim and one lease. Most calls are about a single exclusive lock. They need neither arrays nor the
-- loops over them. What PL/pgSQL prepares anew in every transaction, for each argument and each expression, takes more
-- time than the two changes of the table.
--
-- holdfast_call_acquire_one, holdfast_call_release_one
-- Inputs:  as the functions without _call; NULL for the output
-- Outputs: answer, as the functions without _call, as text
-- Codes:   as in 0011-calls.sql
--
-- The functions are for these procedures alone: nothing else is in their transaction. They decide as holdfast_acquire
-- and holdfast_release do for a list of one, whose comments say why. test/drivers/postgres/equal-paths.test.ts keeps
-- them equal. Plans are made once and kept: with arguments that are single values, each plan is the same every time.

-- holdfast_acquire_one
-- Inputs:  lock name, claim id, holder id, time to live in ms, how long its place in the queue lasts in ms (0: it does
--          not wait), metadata as JSON text (NULL: none), the channel on which this process listens, relaxed
-- Outputs: JSON: {"fencingToken", "grantedAt"}, or {"refusedAt", "ahead", "until", "holder"}. The values are those of
--          holdfast_acquire. ahead and until are null if the claim does not wait, and holder if none is known
CREATE OR REPLACE FUNCTION holdfast_acquire_one(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_wait FLOAT8, p_metadata TEXT, p_channel TEXT,
  p_relaxed BOOLEAN
) RETURNS TEXT
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_void    TEXT;
  v_asked   CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_sweeps  CONSTANT BOOLEAN := random() < 0.125;
  v_stale   BOOLEAN;
  v_row     distributed_locks;
  v_claim   holdfast_waiters;
  v_got     RECORD;
  v_refused BOOLEAN;
  v_answer  TEXT;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  -- The common case: a free name. No token is drawn while the counter has to be raised: holdfast_ask does it.
  INSERT INTO distributed_locks AS d (
    lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended, lasts)
  SELECT p_lock_name, p_holder_id, t, t + p_ttl * interval '1 ms', p_metadata::jsonb, p_claim_id,
    nextval('holdfast_tokens'), false, p_ttl * interval '1 ms'
  FROM clock_timestamp() AS t
  WHERE (SELECT true FROM distributed_locks e WHERE e.lock_name = p_lock_name) IS NULL AND holdfast_is_raised()
  ON CONFLICT (lock_name) DO NOTHING
  RETURNING json_build_object('fencingToken', d.fencing_token, 'grantedAt', extract(epoch FROM d.acquired_at) * 1000),
    d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass)
      OR d.acquired_at < clock_timestamp() - interval '10 ms'
  INTO v_answer, v_stale;
  IF NOT v_stale AND p_wait = 0 AND NOT v_sweeps THEN
    RETURN v_answer;
  END IF;

  IF v_stale THEN
    UPDATE distributed_locks AS d SET fencing_token = nextval('holdfast_tokens'),
      acquired_at = CASE WHEN acquired_at < t - interval '10 ms' THEN t ELSE acquired_at END,
      expires_at = CASE WHEN acquired_at < t - interval '10 ms' THEN t + (expires_at - acquired_at) ELSE expires_at END
    FROM clock_timestamp() AS t WHERE lock_name = p_lock_name
    RETURNING json_build_object('fencingToken', d.fencing_token, 'grantedAt', extract(epoch FROM d.acquired_at) * 1000)
    INTO v_answer;
  END IF;
  IF v_answer IS NOT NULL THEN
    IF p_wait > 0 THEN
      DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id;
    END IF;
  ELSE
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
    v_claim := ROW(p_lock_name, NULL, p_claim_id, p_holder_id, 'exclusive', NULL, 1, p_ttl * interval '1 ms',
      p_metadata::jsonb, p_channel, v_asked, NULL, p_wait * interval '1 ms');
    v_got := holdfast_ask(v_row, v_claim, true);
    v_events := v_got.events;
    v_refused := v_got.fencing_token IS NULL;
    IF v_refused THEN
      v_answer := json_build_object('refusedAt', extract(epoch FROM v_asked) * 1000, 'ahead', v_got.ahead,
        'until', v_got.until, 'holder', v_got.holder);
    ELSE
      v_answer := json_build_object(
        'fencingToken', v_got.fencing_token, 'grantedAt', extract(epoch FROM v_got.acquired_at) * 1000);
    END IF;
  END IF;
  IF v_sweeps THEN
    v_events := v_events || holdfast_sweep(32);
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  ELSIF v_refused THEN
    v_void := set_config('synchronous_commit', 'off', true);
  END IF;
  RETURN v_answer;
END
$$;

-- holdfast_release_one
-- Inputs:  lock name, claim id, fencing token (NULL: any), relaxed, as for holdfast_release
-- Outputs: whether this call ended a lease that had not ended yet
CREATE OR REPLACE FUNCTION holdfast_release_one(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_relaxed BOOLEAN
) RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  v_void TEXT;
  v_got  RECORD;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  DELETE FROM distributed_locks
  WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR fencing_token = p_token)
    AND mode = 'exclusive' AND NOT contended AND expires_at > clock_timestamp();
  IF FOUND THEN
    RETURN true;
  END IF;
  v_got := holdfast_end(p_lock_name, p_claim_id, p_token, true);
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_tell(v_got.events);
  END IF;
  RETURN v_got.ended;
END
$$;

DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_acquire_one(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_wait FLOAT8, p_metadata TEXT, p_channel TEXT,
  p_relaxed BOOLEAN, INOUT answer TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  answer := %1$I.holdfast_acquire_one(
    p_lock_name, p_claim_id, p_holder_id, p_ttl, p_wait, p_metadata, p_channel, p_relaxed);
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_release_one(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_relaxed BOOLEAN, INOUT answer TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  answer := %1$I.holdfast_release_one(p_lock_name, p_claim_id, p_token, p_relaxed);
END
$$;
$sql$, current_schema());
END
$do$;

INSERT INTO holdfast_migrations (version) VALUES (14) ON CONFLICT DO NOTHING;
