-- Migration 3: who may have a lock next. Internal: called by the functions of the migrations after it, under the lock of the name's row.
--
-- holdfast_admit(p_lock_name, p_free, p_claim, p_wait)
-- Inputs:  p_lock_name  its row in distributed_locks is locked by this transaction
--          p_free       the exclusive lease in that row has just been given back
--          p_claim      who asks for the lock now, as a waiter without a place; NULL: nobody
--          p_wait       how long its place lasts without being heard of; zero: it does not wait
-- Outputs: fencing_token, acquired_at  of the lease that p_claim got; NULL: it was refused
--          events       what others are to be told, see holdfast_tell
--
-- From the front of the queue, as many are admitted as fit beside the leases that are out and beside each other, each judged by its own mode and
-- limit; nobody overtakes the first one who does not fit. Who is admitted has the lease from this moment, and is told; as it may
-- be dead, its lease lasts no longer than its place would have, until it is heard of.

CREATE OR REPLACE FUNCTION holdfast_admit(
  p_lock_name TEXT, p_free BOOLEAN, p_claim holdfast_waiters, p_wait INTERVAL,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row       distributed_locks;
  v_waiter    holdfast_waiters;
  v_now       TIMESTAMPTZ := clock_timestamp();
  v_held      BOOLEAN;             -- exclusively
  v_leases    BIGINT := 0;         -- shared ones, and their permits
  v_permits   BIGINT := 0;
  v_stopped   BOOLEAN := false;    -- somebody in the queue does not fit
  v_stands    BOOLEAN := false;    -- p_claim has a place
  v_asks      BOOLEAN := p_claim.claim_id IS NOT NULL;
  v_changed   BOOLEAN := p_free;
  v_contended BOOLEAN;
BEGIN
  SELECT * INTO STRICT v_row FROM distributed_locks WHERE lock_name = p_lock_name;
  DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND expires_at <= v_now;
  v_held := v_row.mode = 'exclusive' AND v_row.expires_at > v_now AND NOT p_free;
  IF v_row.mode = 'shared' THEN
    DELETE FROM holdfast_leases WHERE lock_name = p_lock_name AND expires_at <= v_now;
    SELECT count(*), coalesce(sum(permits), 0) INTO v_leases, v_permits FROM holdfast_leases WHERE lock_name = p_lock_name;
    v_changed := true;
  ELSIF NOT v_held THEN
    -- Left behind by somebody who emptied distributed_locks alone.
    DELETE FROM holdfast_leases WHERE lock_name = p_lock_name;
  END IF;
  IF v_asks THEN
    UPDATE holdfast_waiters SET expires_at = v_now + p_wait WHERE lock_name = p_lock_name AND claim_id = p_claim.claim_id;
    v_stands := FOUND;
  END IF;

  IF NOT v_held THEN
    FOR v_waiter IN SELECT * FROM holdfast_waiters WHERE lock_name = p_lock_name ORDER BY place LOOP
      v_stopped := CASE v_waiter.mode
        WHEN 'exclusive' THEN v_leases > 0
        ELSE v_permits + v_waiter.permits > v_waiter.max_permits END;
      EXIT WHEN v_stopped;
      DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = v_waiter.claim_id;
      v_changed := true;
      -- Drawn under the row's lock, so the order of tokens is the order of holding.
      v_row.fencing_token := nextval('holdfast_tokens');
      IF v_asks AND v_waiter.claim_id = p_claim.claim_id THEN
        v_waiter.expires_at := v_now + p_claim.time_to_live;
        v_waiter.metadata := p_claim.metadata;
        fencing_token := v_row.fencing_token;
        acquired_at := v_now;
      ELSE
        v_waiter.expires_at := least(v_now + v_waiter.time_to_live, v_waiter.expires_at);
        events := events || jsonb_build_array(
          v_waiter.channel, 'granted', v_waiter.claim_id, v_row.fencing_token,
          extract(epoch FROM v_waiter.expires_at - v_now) * 1000, extract(epoch FROM v_now) * 1000);
      END IF;
      IF v_waiter.mode = 'exclusive' THEN
        v_held := true;
        v_row.claim_id := v_waiter.claim_id;
        v_row.holder_id := v_waiter.holder_id;
        v_row.metadata := v_waiter.metadata;
        v_row.expires_at := v_waiter.expires_at;
        EXIT;
      END IF;
      v_leases := v_leases + 1;
      v_permits := v_permits + v_waiter.permits;
      INSERT INTO holdfast_leases VALUES (
        p_lock_name, v_waiter.claim_id, v_waiter.holder_id, v_waiter.max_permits, v_waiter.permits,
        v_row.fencing_token, v_now, v_waiter.expires_at, v_waiter.metadata);
    END LOOP;
  END IF;

  -- Whoever has no place yet comes after all who have one.
  IF v_asks AND NOT v_stands THEN
    IF v_held OR v_stopped OR (p_claim.mode = 'exclusive' AND v_leases > 0)
      OR (p_claim.mode = 'shared' AND v_permits + p_claim.permits > p_claim.max_permits) IS TRUE
    THEN
      IF p_wait > interval '0' THEN
        INSERT INTO holdfast_waiters VALUES (
          p_lock_name, nextval('holdfast_places'), p_claim.claim_id, p_claim.holder_id, p_claim.mode, p_claim.max_permits,
          p_claim.permits, p_claim.time_to_live, p_claim.metadata, p_claim.channel, v_now, v_now + p_wait);
      END IF;
    ELSE
      v_changed := true;
      v_row.fencing_token := nextval('holdfast_tokens');
      fencing_token := v_row.fencing_token;
      acquired_at := v_now;
      IF p_claim.mode = 'exclusive' THEN
        v_held := true;
        v_row.claim_id := p_claim.claim_id;
        v_row.holder_id := p_claim.holder_id;
        v_row.metadata := p_claim.metadata;
        v_row.expires_at := v_now + p_claim.time_to_live;
      ELSE
        v_leases := v_leases + 1;
        INSERT INTO holdfast_leases VALUES (
          p_lock_name, p_claim.claim_id, p_claim.holder_id, p_claim.max_permits, p_claim.permits,
          v_row.fencing_token, v_now, v_now + p_claim.time_to_live, p_claim.metadata);
        v_row.holder_id := p_claim.holder_id;
      END IF;
    END IF;
  END IF;

  -- The row tells the outcome, to plain clients as well. It is written whenever leases changed, not only locked: a transaction with an older
  -- snapshot (REPEATABLE READ) then fails instead of deciding by what it cannot see.
  -- Waiters that came after such a snapshot have not written the row if it was contended already: then it stays so.
  v_contended := v_leases > 0 OR EXISTS (SELECT FROM holdfast_waiters WHERE lock_name = p_lock_name)
    OR (v_row.contended AND current_setting('transaction_isolation') <> 'read committed');
  IF NOT v_held AND NOT v_contended THEN
    DELETE FROM distributed_locks WHERE lock_name = p_lock_name;
  ELSIF v_held THEN
    IF v_changed THEN
      UPDATE distributed_locks SET mode = 'exclusive', contended = v_contended, claim_id = v_row.claim_id,
        holder_id = v_row.holder_id, metadata = v_row.metadata, fencing_token = v_row.fencing_token,
        acquired_at = v_now, expires_at = v_row.expires_at
      WHERE lock_name = p_lock_name;
    ELSIF v_row.contended <> v_contended THEN
      UPDATE distributed_locks SET contended = v_contended WHERE lock_name = p_lock_name;
    END IF;
  ELSIF v_leases > 0 THEN
    UPDATE distributed_locks SET mode = 'shared', contended = true, claim_id = NULL, holder_id = v_row.holder_id,
      metadata = NULL, fencing_token = v_row.fencing_token,
      acquired_at = CASE WHEN v_row.mode = 'shared' THEN v_row.acquired_at ELSE v_now END,
      expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = p_lock_name)
    WHERE lock_name = p_lock_name;
  ELSIF v_changed OR NOT v_row.contended THEN
    -- Free, and waited for by somebody who has not come yet.
    UPDATE distributed_locks SET mode = 'exclusive', contended = true, claim_id = NULL, metadata = NULL,
      expires_at = least(expires_at, v_now)
    WHERE lock_name = p_lock_name;
  END IF;
END
$$;

-- What the first of a queue is told when the one before it has gone and it must wait on: when asking again may help has changed.
-- Inputs: p_lock_name. Outputs: one event, or none
CREATE OR REPLACE FUNCTION holdfast_first(p_lock_name TEXT) RETURNS JSONB[]
LANGUAGE sql AS $$
  SELECT array_agg(jsonb_build_array(channel, 'wake', claim_id, lock_name))
  FROM (SELECT * FROM holdfast_waiters WHERE lock_name = p_lock_name ORDER BY place LIMIT 1) AS first
$$;

-- Sends the events of one call, each process those of its own waiters. A payload holds a few, and so stays below 8,000 bytes.
-- Inputs: events [channel, 'granted', claim_id, fencing_token, time to live in ms, acquired_at in ms] and [channel, 'wake', claim_id, lock_name]
CREATE OR REPLACE FUNCTION holdfast_tell(p_events JSONB[]) RETURNS VOID
LANGUAGE sql AS $$
  SELECT pg_notify(channel, payload) FROM (
    SELECT channel, jsonb_agg(event)::text AS payload FROM (
      SELECT each ->> 0 AS channel, each - 0 AS event,
        (row_number() OVER (PARTITION BY each ->> 0 ORDER BY ord)) / 3 AS part
      FROM unnest(p_events) WITH ORDINALITY AS events (each, ord)
    ) AS parts GROUP BY channel, part
  ) AS messages
$$;

-- A bounded number of rows that ended some time ago goes away. The last step of a call: what it locks it waits for nobody to lock, and after it
-- nothing is waited for, so it takes part in no deadlock. It goes through the index in its order and stops: whatever the planner believes of how many have
-- ended, it reads no more rows than it may take.
-- Inputs: p_most. Outputs: events
CREATE OR REPLACE FUNCTION holdfast_sweep(p_most INTEGER) RETURNS JSONB[]
LANGUAGE plpgsql SET enable_sort = off SET enable_bitmapscan = off AS $$
DECLARE
  v_rows   TID[];
  v_names  TEXT[];
  v_name   TEXT;
  v_events JSONB[];
  v_before TIMESTAMPTZ := clock_timestamp() - interval '5 seconds';
BEGIN
  SELECT array_agg(ended.ctid) FILTER (WHERE NOT contended), array_agg(lock_name) FILTER (WHERE contended) INTO v_rows, v_names
  FROM (
    SELECT ctid, lock_name, contended FROM distributed_locks WHERE expires_at < v_before
    ORDER BY expires_at LIMIT p_most FOR UPDATE SKIP LOCKED
  ) AS ended;
  DELETE FROM distributed_locks WHERE ctid = ANY (v_rows);
  FOREACH v_name IN ARRAY coalesce(v_names[1 : 16], '{}') LOOP
    v_events := v_events || (SELECT a.events FROM holdfast_admit(v_name, false, NULL, NULL) AS a);
  END LOOP;
  -- Their own names' rows are gone: emptied by somebody.
  DELETE FROM holdfast_leases WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast_leases WHERE expires_at < v_before - interval '1 minute'
    ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED));
  DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast_waiters WHERE expires_at < v_before - interval '1 minute'
    ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED));
  RETURN v_events;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (3) ON CONFLICT DO NOTHING;
