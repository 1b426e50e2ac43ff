-- The functions and procedures of the PostgreSQL table driver. schema.sql has the tables.
--
-- Inputs:  the tables of schema.sql, in the first schema of search_path. A client puts the quoted name of that schema
--          in the place of its variable (as in statements.sql) before it runs the file
-- Outputs: the routines below. Safe to run again
--
-- The life of a claim
--
--   A client calls a procedure (holdfast_call_acquire). It begins a transaction of its own and calls a function
--   (holdfast_acquire), which decides the claims of a list one after the other (holdfast_decide_claim).
--   A claim on a free name inserts the name's row in distributed_locks. That is the common case, and one statement.
--   A claim on a held name is refused (holdfast_must_refuse), or takes a place in the queue (holdfast_join_queue) and
--   is answered how many wait before it. It asks again with the same claim id, and so keeps its place.
--   A renewal (holdfast_renew_lease) moves the end of a lease. A release (holdfast_end_lease) frees the name. If there
--   are waiters, the first of them get their leases in the same transaction (holdfast_grant_waiters), and their
--   processes are notified (holdfast_send_events). A lease that is neither renewed nor released ends by itself: the
--   next claim on its name finds that out, or a call that sweeps (holdfast_sweep).
--
-- Locks
--
--   The row of a name is locked before it is changed, no more strongly than necessary:
--     FOR UPDATE         the holder changes: a grant, a release, a hand-over. Excludes all others
--     FOR NO KEY UPDATE  the end of a lease changes
--     FOR KEY SHARE      a claim joins the queue of a name that is already contended. Compatible with FOR NO KEY
--                        UPDATE, so a renewal never waits for claims, however many there are. A release waits only
--                        for those that have begun before it (holdfast_lock_row)
--     none               a claim is refused, keeps its place in the queue of a held lock, or leaves the queue. It
--                        touches only its own row in holdfast_waiters. So code that removes a waiter from the queue
--                        must check that the waiter was still there
--   A row that another transaction keeps locked costs only its own entry of a list. A list of one is patient: it waits
--   for the row, and then fails (55P03). A longer list skips locked rows, does the rest, and answers "not known" for
--   them. It waits only for a free name that another transaction is taking at this moment. Names are taken in one
--   order, byte by byte (COLLATE "C"), so overlapping lists never deadlock.
--
-- Settings
--
--   Functions that a client or a procedure calls keep the search_path, and plan without statistics: one plan for all
--   values, and never by reading a table from its beginning or by sorting one. To the planner a table of locks looks
--   empty, but the rows of a second ago are still on the disk. A plan that must sort looks expensive then, but is not
--   worth compiling (jit). A procedure that commits cannot have such settings, so it names the schema of what it calls.

-- Fencing tokens ------------------------------------------------------------------------------------------------------
--
-- One counter serves all names and rises by one with every grant. It is kept ahead of the server's clock in
-- microseconds: it is raised to "the clock plus one second" when the clock has caught up with it, and once in every
-- run. A run begins when the server is started or promoted, when it has recovered from a crash, and with every copy of
-- the database. So the next token is higher than all before it
-- - after the table was truncated, because the sequence is not part of it;
-- - after the sequence was lost with the schema, because the counter is never further ahead of the clock than a second,
--   and the new one is raised to a later clock (as long as fewer than a million tokens are drawn in a second);
-- - after a crash, because a grant is committed after the token's log record. With synchronous_commit = off that record
--   may be lost, but a new run begins. (Before PostgreSQL 15, no new run begins after a crash that the postmaster
--   survived. Then the tokens of the last moment, with synchronous_commit = off, can be given again);
-- - after a failover to a replica whose counter lags: a new run begins, and its clock is later than any that the old
--   primary saw;
-- - after the database was put back from a copy (a template, a dump), because the copy has other files. If a dump of
--   the data alone is put back into the same tables, a second must have passed: the counter is no further ahead of the
--   clock;
-- - after the clock was set back, because nothing ever lowers the sequence.
-- A token stays a safe integer for a JavaScript client until the year 2255.

-- A number for this run. It is compared for equality only, because a promoted server may have been started long before
-- the primary that it replaces. It is made of the start of the postmaster, the last replayed transaction (a promotion
-- ends replay), the last reset of statistics (a recovery resets them; before PostgreSQL 15 they cost too much to read),
-- and the file of the counter, which belongs to one database and differs after a dump was restored.
-- This function and the next are single expressions in SQL, so that their callers' plans contain them.
CREATE OR REPLACE FUNCTION holdfast_server_run() RETURNS BIGINT
LANGUAGE sql AS $$
  SELECT ((extract(epoch FROM pg_postmaster_start_time())
    + coalesce(extract(epoch FROM pg_last_xact_replay_timestamp()), 0)
    + coalesce(CASE WHEN current_setting('server_version_num')::integer >= 150000
        THEN extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) END, 0)) * 1000000
    + hashtext(pg_relation_filepath('holdfast_tokens'::regclass)))::bigint
$$;

-- Whether a token may be drawn: the counter is ahead of the clock, and was raised in this run.
CREATE OR REPLACE FUNCTION holdfast_tokens_are_raised() RETURNS BOOLEAN
LANGUAGE sql AS $$
  SELECT pg_sequence_last_value('holdfast_tokens'::regclass) >= extract(epoch FROM clock_timestamp()) * 1000000
    AND pg_sequence_last_value('holdfast_raised'::regclass) = holdfast_server_run()
$$;

-- Raises the counter if it has to be. Call it before nextval('holdfast_tokens'), in the same transaction.
-- Outputs: whether it had to be raised
CREATE OR REPLACE FUNCTION holdfast_raise_tokens() RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_lead     CONSTANT BIGINT := 1000000;
  v_patience CONSTANT TEXT := current_setting('lock_timeout');
  v_run      BIGINT;
  v_fresh    BOOLEAN := false;
  v_clock    BIGINT;
  v_last     BIGINT;
  v_early    BIGINT;      -- how far beyond the lead the counter would be, in microseconds
BEGIN
  LOOP
    v_run := holdfast_server_run();
    IF holdfast_tokens_are_raised() THEN
      RETURN false;
    END IF;
    EXIT WHEN v_fresh;
    -- A transaction keeps its snapshot of the statistics. If they were reset since, it would see a different run than
    -- every other session, and each would raise the counter in turn.
    PERFORM pg_stat_clear_snapshot();
    v_fresh := true;
  END LOOP;
  -- One session at a time, and it checks again: two that raise the counter together could set it to the lower of their
  -- clocks, below a token already given. The lock is released at once, not with the transaction, which may be a long
  -- one of the caller.
  BEGIN
    -- A list waits for rows too briefly for this.
    PERFORM set_config('lock_timeout', '2s', true);
    PERFORM pg_advisory_lock(7813544519228563561);
    PERFORM set_config('lock_timeout', v_patience, true);
    v_clock := extract(epoch FROM clock_timestamp()) * 1000000;
    v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
    IF v_last < v_clock OR pg_sequence_last_value('holdfast_raised'::regclass) IS DISTINCT FROM v_run THEN
      -- Until the counter is raised, holdfast_raised does not name this run. So all calls from now on come here and
      -- wait. Only calls that had checked before still draw tokens. However long this session stalls, they draw fewer
      -- than a quarter of a million. setval must therefore reach that far beyond the counter, or it would lower it
      -- below their tokens.
      PERFORM setval('holdfast_raised', 1);
      v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
      -- That may be further ahead of the clock than the lead. If the sequence were lost then, the new one would begin
      -- below it. So this session waits until it is not. It never waits longer than for that quarter: a counter that is
      -- further ahead is due to a clock that was set back.
      v_early := v_last + v_lead / 4 - v_clock - v_lead;
      IF v_early BETWEEN 1 AND v_lead / 4 THEN
        PERFORM pg_sleep(v_early / 1e6);
        v_clock := extract(epoch FROM clock_timestamp()) * 1000000;
      END IF;
      PERFORM setval('holdfast_tokens', greatest(v_clock + v_lead, v_last + v_lead / 4));
      PERFORM setval('holdfast_raised', v_run);
    END IF;
    PERFORM pg_advisory_unlock(7813544519228563561);
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    -- Only if this session has the lock: the wait for it may have failed.
    PERFORM pg_advisory_unlock(7813544519228563561) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
      AND (classid::bigint << 32 | objid::bigint) = 7813544519228563561;
    RAISE;
  END;
  RETURN true;
END
$$;

-- Durability ----------------------------------------------------------------------------------------------------------
--
-- A call of the driver that changes leases waits for the disk, even if the role sets synchronous_commit = off, unless
-- it is relaxed. Every call that hands a lock over to a waiter waits, relaxed or not: the waiter relies on the grant,
-- and may be crash-safe although the caller is relaxed. The plain functions (acquire_lock and the others) follow the
-- session's setting, except for that.
-- A claim that is only refused or queued does not wait: if a crash undoes that, the waiter asks again.

-- Sets for the rest of the transaction whether its commit waits for the disk. What was lowered is raised to the value
-- before, because `on` may wait for a standby when `local` does not.
-- Inputs:  whether it need not wait; whether the transaction has written what must wait. It is not lowered then
-- Outputs: whether it was changed. (An assignment costs less than a query, so every call assigns the result)
CREATE OR REPLACE FUNCTION holdfast_set_durability(
  p_relaxed BOOLEAN, p_written BOOLEAN DEFAULT pg_current_xact_id_if_assigned() IS NOT NULL
) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_now    CONSTANT TEXT := current_setting('synchronous_commit');
  v_before TEXT;
BEGIN
  IF NOT p_relaxed AND v_now = 'off' THEN
    v_before := coalesce(nullif(current_setting('holdfast.durability', true), ''), 'on');
    RETURN set_config('synchronous_commit', v_before, true) IS NOT NULL;
  ELSIF p_relaxed AND v_now <> 'off' AND NOT p_written THEN
    v_before := set_config('holdfast.durability', v_now, true);
    RETURN set_config('synchronous_commit', 'off', true) IS NOT NULL;
  END IF;
  RETURN false;
END
$$;

-- Notifications -------------------------------------------------------------------------------------------------------

-- The key of the proofs.
-- Outputs: the key; NULL if this role may not read it. It never fails for that: a notification must not cost a release
CREATE OR REPLACE FUNCTION holdfast_key() RETURNS TEXT
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
  IF has_sequence_privilege('holdfast_key_1', 'SELECT') AND has_sequence_privilege('holdfast_key_2', 'SELECT') THEN
    RETURN pg_sequence_last_value('holdfast_key_1') || '.' || pg_sequence_last_value('holdfast_key_2');
  END IF;
  RETURN NULL;
END
$$;

-- Sends the events of one call. Each process gets the events of its own waiters. A payload holds at most three events,
-- so it stays below 8,000 bytes.
-- Inputs: events [channel of the waiter, claim_id, fencing_token, acquired_at in ms, duration in ms], all texts: the
--         claim has this lease. With '' for the last three: the claim should ask again
-- Every role that can connect can send a notification. So each event ends with a proof: the SHA-256, in hex, of the
-- key, the random text behind the channel, the token, the two times, the claim id and the key, with blanks in between.
-- If this role cannot read the key, nothing is sent. Waiters also poll.
-- A client of any application that listens and leaves a transaction open fills the notification queue for the entire
-- server. Then every transaction that notifies fails, and a lock could no longer be released. So nothing is sent while
-- the queue is half full.
CREATE OR REPLACE FUNCTION holdfast_send_events(p_events JSONB[]) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
  v_key CONSTANT TEXT := CASE WHEN pg_notification_queue_usage() < 0.5 THEN holdfast_key() END;
BEGIN
  IF v_key IS NOT NULL THEN
    PERFORM pg_notify(channel, jsonb_agg(event)::text) FROM (
      SELECT split_part(each ->> 0, ':', 1) AS channel,
        (row_number() OVER (PARTITION BY split_part(each ->> 0, ':', 1) ORDER BY ord)) / 3 AS part,
        each - 0 || to_jsonb(encode(sha256(convert_to(concat_ws(' ', v_key, split_part(each ->> 0, ':', 2),
          each ->> 2, each ->> 3, each ->> 4, each ->> 1, v_key), 'UTF8')), 'hex')) AS event
      FROM unnest(p_events) WITH ORDINALITY AS events (each, ord)
    ) AS parts GROUP BY channel, part;
  END IF;
END
$$;

-- Who gets a lock next ------------------------------------------------------------------------------------------------

-- The leases on a name that have not ended, as rows of holdfast_leases. permits is NULL for an exclusive one.
CREATE OR REPLACE FUNCTION holdfast_leases_on(p_lock_name TEXT) RETURNS SETOF holdfast_leases
LANGUAGE sql STABLE AS $$
  SELECT lock_name, coalesce(claim_id, 'plain:' || holder_id), holder_id, NULL::bigint, NULL::bigint,
    coalesce(fencing_token, 0), acquired_at, expires_at, ttl_ms, metadata
  FROM distributed_locks
  WHERE lock_name = p_lock_name AND mode = 'exclusive' AND expires_at > clock_timestamp()
  UNION ALL
  SELECT l.* FROM distributed_locks d, holdfast_leases l
  WHERE d.lock_name = p_lock_name AND d.mode = 'shared' AND l.lock_name = p_lock_name
    AND l.expires_at > clock_timestamp()
$$;

-- A lease as JSON, with the names that the driver interface uses.
-- Inputs: a row of holdfast_leases_on
CREATE OR REPLACE FUNCTION holdfast_lease_json(p_lease holdfast_leases) RETURNS JSONB
LANGUAGE sql STABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object(
    'lockName', p_lease.lock_name, 'claimId', p_lease.claim_id, 'holderId', p_lease.holder_id,
    'mode', CASE WHEN p_lease.permits IS NULL THEN 'exclusive' ELSE 'shared' END, 'limit', p_lease.max_permits,
    'permits', coalesce(p_lease.permits, 1), 'fencingToken', p_lease.fencing_token,
    'acquiredAtMs', extract(epoch FROM p_lease.acquired_at) * 1000,
    'expiresAtMs', extract(epoch FROM p_lease.expires_at) * 1000
  )) || CASE WHEN p_lease.metadata IS NULL THEN '{}' ELSE jsonb_build_object('metadata', p_lease.metadata) END
$$;

-- When an exclusive lease ends at the latest, judged from now. An end that is farther away was written before the clock
-- was set back. Of a row with only the plain columns, the beginning and the end tell how long its lease lasts. The
-- result is infinite if it has no end: no clock that was set back explains that.
CREATE OR REPLACE FUNCTION holdfast_latest_end(p_row distributed_locks) RETURNS TIMESTAMPTZ
LANGUAGE plpgsql AS $$
DECLARE
  v_ttl_ms FLOAT8 := p_row.ttl_ms;
BEGIN
  IF p_row.claim_id IS NULL OR v_ttl_ms IS NULL THEN
    v_ttl_ms := (extract(epoch FROM p_row.expires_at) - extract(epoch FROM p_row.acquired_at)) * 1000;
  END IF;
  -- Three hundred years
  RETURN CASE WHEN v_ttl_ms < 1e13 THEN clock_timestamp() + v_ttl_ms * interval '1 ms' ELSE 'infinity' END;
END
$$;

-- Locks the row of a name.
-- A lock FOR KEY SHARE passes others that wait FOR UPDATE. So a release would starve while claims join without a pause.
-- Each name has a gate, an advisory lock: a transaction that has to wait FOR UPDATE closes it until it ends, and a
-- claim that joins goes through it first.
-- Inputs:  lock name; whether only to join its queue (FOR KEY SHARE), not to change its holder (FOR UPDATE); whether to
--          wait for a locked row; the holder id for a row that is created if there is none (NULL: none is created).
--          Such a row is free, so that it is decided on like any other
-- Outputs: the row; NULL if there is none or, without waiting, if it is locked
CREATE OR REPLACE FUNCTION holdfast_lock_row(
  p_lock_name TEXT, p_join BOOLEAN, p_patient BOOLEAN, p_create_for TEXT
) RETURNS distributed_locks
LANGUAGE plpgsql AS $$
DECLARE
  v_class CONSTANT INTEGER := 1952535399;
  v_gate  INTEGER;
  v_row   distributed_locks;
BEGIN
  IF p_join THEN
    v_gate := hashtext('distributed_locks'::regclass::oid || p_lock_name);
    -- In one expression: a cancel in between would leave the gate locked.
    IF NOT (pg_try_advisory_lock_shared(v_class, v_gate) AND pg_advisory_unlock_shared(v_class, v_gate)) THEN
      IF NOT p_patient THEN
        RETURN NULL;
      END IF;
      PERFORM pg_advisory_xact_lock_shared(v_class, v_gate);
    END IF;
    IF p_patient THEN
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR KEY SHARE;
    ELSE
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR KEY SHARE SKIP LOCKED;
    END IF;
    RETURN v_row;
  END IF;
  FOR v_try IN 1..10 LOOP
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE SKIP LOCKED;
    IF v_row.lock_name IS NULL AND p_patient AND EXISTS (SELECT FROM distributed_locks WHERE lock_name = p_lock_name)
    THEN
      PERFORM pg_advisory_xact_lock(v_class, hashtext('distributed_locks'::regclass::oid || p_lock_name));
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE;
    END IF;
    EXIT WHEN v_row.lock_name IS NOT NULL OR p_create_for IS NULL OR (v_try > 1 AND NOT p_patient);
    INSERT INTO distributed_locks (lock_name, holder_id, acquired_at, expires_at, contended)
    VALUES (p_lock_name, p_create_for, clock_timestamp(), clock_timestamp(), true) ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN v_row;
END
$$;

-- Grants a free or shared lock to those whose turn it is.
-- Inputs:  p_row        the current row of distributed_locks, locked FOR UPDATE by this transaction
--          p_free       the exclusive lease in that row has just been released
--          p_claim      the claim that asks for the lock now, as a waiter without a place; NULL: none. waiting_since is
--                       when it asked: a place that had not expired by then is kept, however long the claim waited for
--                       the row's lock. wait_ms is zero if it does not wait
-- Outputs: fencing_token, acquired_at  of the lease that p_claim was granted; NULL: it was refused
--          place        of p_claim in the queue; NULL: it has none
--          events       the notifications to send, see holdfast_send_events
--
-- Waiters are granted the lock from the front of the queue, as many as fit beside the existing leases and beside each
-- other. Each is judged by its own mode and limit. No waiter overtakes the first one that does not fit. Such a waiter
-- has its lease from this moment and is notified. It may be dead, so until it asks again its lease lasts no longer than
-- its place would have. One that cannot be notified asks before its place ends, so its lease lasts as long as that.
-- A lease or a place that ends later than a renewal now would set was written before the server's clock was set back,
-- and has not been renewed since. It would outlive its holder by as much as the clock went back. So it ends as if it
-- had been renewed now.
-- Only the front of the queue is read, and dead waiters are removed when they reach it. So a hand-over costs the same
-- however many wait.
CREATE OR REPLACE FUNCTION holdfast_grant_waiters(
  p_row distributed_locks, p_free BOOLEAN, p_claim holdfast_waiters,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT place BIGINT, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_name      CONSTANT TEXT := p_row.lock_name;
  v_now       CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_asks      CONSTANT BOOLEAN := p_claim.claim_id IS NOT NULL;
  v_row       distributed_locks := p_row;
  v_waiter    holdfast_waiters;
  v_held      BOOLEAN := p_row.mode = 'exclusive' AND p_row.expires_at > v_now AND NOT p_free;  -- held exclusively
  v_leases    BIGINT := 0;         -- shared leases, and their permits
  v_permits   BIGINT := 0;
  v_queued    BOOLEAN := false;    -- there is known to be a waiter
  v_changed   BOOLEAN := p_free;
  v_contended BOOLEAN;
  v_void      BOOLEAN;
  v_future    CONSTANT TIMESTAMPTZ := v_now + interval '1 second';
  v_ahead     BOOLEAN;
  v_left_ms   FLOAT8;              -- how much longer a waiter's place would have lasted
BEGIN
  IF v_row.mode = 'shared' THEN
    DELETE FROM holdfast_leases WHERE lock_name = v_name AND expires_at <= v_now;
    SELECT count(*), coalesce(sum(permits), 0), bool_or(expires_at > v_future + ttl_ms * interval '1 ms')
    INTO v_leases, v_permits, v_ahead FROM holdfast_leases WHERE lock_name = v_name;
    IF v_ahead THEN
      UPDATE holdfast_leases SET acquired_at = least(acquired_at, v_now),
        expires_at = v_now + ttl_ms * interval '1 ms'
      WHERE lock_name = v_name AND expires_at > v_future + ttl_ms * interval '1 ms';
    END IF;
    v_changed := true;
  ELSIF v_held AND v_row.expires_at > holdfast_latest_end(v_row) + interval '1 second' THEN
    v_row.expires_at := holdfast_latest_end(v_row);
    UPDATE distributed_locks SET acquired_at = least(acquired_at, v_now), expires_at = v_row.expires_at
    WHERE lock_name = v_name;
  END IF;
  IF v_asks AND NOT v_held THEN
    UPDATE holdfast_waiters SET expires_at = v_now + p_claim.wait_ms * interval '1 ms', wait_ms = p_claim.wait_ms,
      waiting_since = least(waiting_since, v_now), channel = p_claim.channel
    WHERE claim_id = p_claim.claim_id AND lock_name || '' = v_name AND expires_at > p_claim.waiting_since;
  END IF;

  WHILE NOT v_held LOOP
    SELECT * INTO v_waiter FROM holdfast_waiters WHERE lock_name = v_name ORDER BY place LIMIT 1;
    IF v_waiter.place IS NULL THEN
      -- A claim without a place comes after all that have one.
      EXIT WHEN NOT v_asks OR fencing_token IS NOT NULL;
      v_waiter := p_claim;
    ELSIF v_waiter.expires_at <= v_now THEN
      DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
        SELECT at FROM (
          SELECT ctid AS at, expires_at FROM holdfast_waiters WHERE lock_name = v_name ORDER BY place LIMIT 100
        ) AS front
        WHERE expires_at <= v_now)) AND expires_at <= v_now;
      CONTINUE;
    ELSIF v_waiter.expires_at > v_future + v_waiter.wait_ms * interval '1 ms' THEN
      UPDATE holdfast_waiters SET waiting_since = least(waiting_since, v_now),
        expires_at = v_now + wait_ms * interval '1 ms'
      WHERE lock_name = v_name AND expires_at > v_future + wait_ms * interval '1 ms';
      CONTINUE;
    END IF;
    IF (v_waiter.mode = 'exclusive' AND v_leases > 0)
      OR (v_waiter.mode = 'shared' AND v_permits + v_waiter.permits > v_waiter.max_permits)
    THEN
      EXIT WHEN v_waiter.place IS NULL;
      -- Locked, so that it cannot leave before this transaction ends: waiters behind it that fit would then not be
      -- granted the lock.
      PERFORM FROM holdfast_waiters WHERE lock_name = v_name AND place = v_waiter.place FOR UPDATE;
      CONTINUE WHEN NOT FOUND;
      v_queued := true;
      EXIT;
    END IF;
    IF v_waiter.place IS NOT NULL THEN
      -- The channel is that of its last call, which may have come after the place was read.
      DELETE FROM holdfast_waiters WHERE lock_name = v_name AND place = v_waiter.place
      RETURNING channel INTO v_waiter.channel;
      CONTINUE WHEN NOT FOUND;  -- It has just left the queue.
    END IF;
    v_changed := true;
    -- Drawn under the row's lock, so that tokens rise in the order of holders. A hand-over may be the first draw after
    -- a failover.
    v_void := holdfast_raise_tokens();
    v_row.fencing_token := nextval('holdfast_tokens');
    v_row.holder_id := v_waiter.holder_id;
    IF v_asks AND v_waiter.claim_id = p_claim.claim_id THEN
      v_waiter.ttl_ms := p_claim.ttl_ms;
      v_waiter.metadata := p_claim.metadata;
      fencing_token := v_row.fencing_token;
      acquired_at := v_now;
    ELSE
      v_left_ms := (extract(epoch FROM v_waiter.expires_at) - extract(epoch FROM v_now)) * 1000;
      IF v_waiter.ttl_ms > v_left_ms OR v_waiter.channel LIKE '%:polls'
        OR pg_notification_queue_usage() >= 0.5 OR holdfast_key() IS NULL
      THEN
        v_waiter.ttl_ms := v_left_ms;
      END IF;
      events := events || jsonb_build_array(v_waiter.channel, v_waiter.claim_id, v_row.fencing_token::text,
        (extract(epoch FROM v_now) * 1000)::text, v_waiter.ttl_ms::text);
      -- The waiter relies on this grant, without a call of its own that would wait for the disk. It may be crash-safe
      -- although this call is relaxed.
      v_void := holdfast_set_durability(false);
    END IF;
    IF v_waiter.mode = 'exclusive' THEN
      v_held := true;
      v_row.claim_id := v_waiter.claim_id;
      v_row.metadata := v_waiter.metadata;
      v_row.ttl_ms := v_waiter.ttl_ms;
    ELSE
      IF v_leases = 0 AND p_row.mode = 'exclusive' THEN
        -- Left over where distributed_locks alone was emptied.
        DELETE FROM holdfast_leases WHERE lock_name = v_name;
      END IF;
      v_leases := v_leases + 1;
      v_permits := v_permits + v_waiter.permits;
      INSERT INTO holdfast_leases VALUES (
        v_name, v_waiter.claim_id, v_waiter.holder_id, v_waiter.max_permits, v_waiter.permits, v_row.fencing_token,
        v_now, v_now + v_waiter.ttl_ms * interval '1 ms', v_waiter.ttl_ms, v_waiter.metadata);
    END IF;
  END LOOP;

  IF v_asks AND fencing_token IS NULL AND p_claim.wait_ms > 0 THEN
    place := (holdfast_join_queue(p_row, p_claim, NULL)).place;
    v_queued := true;
  END IF;

  -- The row shows the outcome, to plain clients as well. It is written, not only locked, whenever leases changed: a
  -- transaction with an older snapshot (REPEATABLE READ) then fails instead of deciding on outdated rows.
  -- A waiter that joined after such a snapshot has not written the row if it was already contended. So it stays so.
  v_contended := v_leases > 0 OR v_queued
    OR (p_row.contended AND current_setting('transaction_isolation') <> 'read committed');
  IF v_held AND NOT v_contended AND (v_changed OR p_row.contended) THEN
    v_contended := EXISTS (SELECT FROM holdfast_waiters WHERE lock_name = v_name);
  END IF;
  IF v_held AND v_changed THEN
    UPDATE distributed_locks SET mode = 'exclusive', claim_id = v_row.claim_id, holder_id = v_row.holder_id,
      metadata = v_row.metadata, fencing_token = v_row.fencing_token, acquired_at = v_now,
      expires_at = v_now + v_row.ttl_ms * interval '1 ms', ttl_ms = v_row.ttl_ms, contended = v_contended
    WHERE lock_name = v_name;
  ELSIF v_held THEN
    IF p_row.contended <> v_contended THEN
      UPDATE distributed_locks SET contended = v_contended WHERE lock_name = v_name;
    END IF;
  ELSIF NOT v_contended THEN
    DELETE FROM distributed_locks WHERE lock_name = v_name;
  ELSIF v_leases > 0 THEN
    UPDATE distributed_locks SET mode = 'shared', contended = true, claim_id = NULL, holder_id = v_row.holder_id,
      metadata = NULL, fencing_token = v_row.fencing_token,
      acquired_at = CASE WHEN p_row.mode = 'shared' THEN least(p_row.acquired_at, v_now) ELSE v_now END,
      expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = v_name)
    WHERE lock_name = v_name;
  ELSIF v_changed OR NOT p_row.contended THEN
    -- Free, but its waiters have not asked yet.
    UPDATE distributed_locks SET mode = 'exclusive', contended = true, claim_id = NULL, metadata = NULL,
      expires_at = least(expires_at, v_now)
    WHERE lock_name = v_name;
  END IF;
END
$$;

-- The event for the first live waiter of a queue, when it has to wait on but should ask again at another time than
-- before: a lease ends sooner, or waiters before it have left. Only the first one would ask.
-- Inputs:  p_lock_name; p_left, a place that was left: no event unless it was before the first waiter's (NULL: any)
-- Outputs: one event, or NULL
CREATE OR REPLACE FUNCTION holdfast_wake_first(p_lock_name TEXT, p_left BIGINT) RETURNS JSONB[]
LANGUAGE plpgsql AS $$
DECLARE
  v_first holdfast_waiters;
BEGIN
  SELECT * INTO v_first FROM (
    SELECT * FROM holdfast_waiters WHERE lock_name = p_lock_name ORDER BY place LIMIT 100
  ) AS front WHERE expires_at > clock_timestamp() ORDER BY place LIMIT 1;
  RETURN CASE WHEN v_first.place IS NOT NULL AND (p_left > v_first.place) IS NOT TRUE
    THEN ARRAY[jsonb_build_array(v_first.channel, v_first.claim_id, '', '', '')] END;
END
$$;

-- Removes a bounded number of rows that ended some time ago. It is the last step of a call. It skips locked rows, and
-- nothing waits after it, so it takes part in no deadlock. It scans the index in order and stops. So it reads no more
-- rows than it may remove.
-- While any transaction of the server stays open, deleted rows stay in the index, and a sweep from its beginning would
-- read all of them every time. So each session remembers how far it has swept and continues there. Every five minutes
-- it starts from the beginning, for rows that were locked, or that came later with an earlier end.
-- Inputs:  p_most, the maximum number of rows
-- Outputs: events
CREATE OR REPLACE FUNCTION holdfast_sweep(p_most INTEGER) RETURNS JSONB[]
LANGUAGE plpgsql AS $$
DECLARE
  v_now    CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_before CONSTANT TIMESTAMPTZ := v_now - interval '5 seconds';
  -- How far this session has swept, and since when, in seconds.
  v_name   CONSTANT TEXT := 'holdfast.swept_' || 'distributed_locks'::regclass::oid;
  v_swept  CONSTANT FLOAT8[] := nullif(current_setting(v_name, true), '')::float8[];
  v_is_old CONSTANT BOOLEAN := (extract(epoch FROM v_now) BETWEEN v_swept[2] AND v_swept[2] + 300
    AND to_timestamp(v_swept[1]) <= v_before) IS NOT TRUE;
  v_from   CONSTANT TIMESTAMPTZ := CASE WHEN v_is_old THEN '-infinity' ELSE to_timestamp(v_swept[1]) END;
  v_to     TIMESTAMPTZ;
  v_rows   TID[];
  v_queues distributed_locks[];
  v_row    distributed_locks;
  v_events JSONB[];
BEGIN
  SELECT array_agg(ended.ctid) FILTER (WHERE NOT contended), array_agg(ended.each) FILTER (WHERE contended),
    CASE WHEN count(*) < p_most THEN v_before ELSE max((ended.each).expires_at) END INTO v_rows, v_queues, v_to
  FROM (
    SELECT ctid, contended, d AS each FROM distributed_locks d WHERE expires_at >= v_from AND expires_at < v_before
    ORDER BY expires_at LIMIT p_most FOR UPDATE SKIP LOCKED
  ) AS ended;
  v_to := least(v_to, v_queues[17].expires_at);
  -- One millisecond less, because a double rounds microseconds.
  PERFORM set_config(v_name, ARRAY[extract(epoch FROM v_to - interval '1 ms'),
    CASE WHEN v_is_old THEN extract(epoch FROM v_now) ELSE v_swept[2] END]::text, false);
  DELETE FROM distributed_locks WHERE ctid = ANY (v_rows);
  FOREACH v_row IN ARRAY coalesce(v_queues[1 : 16], '{}') LOOP
    v_events := v_events || (holdfast_grant_waiters(v_row, false, NULL)).events;
  END LOOP;
  RETURN v_events;
END
$$;

-- Claims --------------------------------------------------------------------------------------------------------------

-- Whether a claim cannot be granted now, judged by what is visible without a lock. False: it must be decided under the
-- row's lock. So must rows that were written before the clock was set back (see holdfast_grant_waiters).
CREATE OR REPLACE FUNCTION holdfast_must_refuse(p_row distributed_locks, p_claim holdfast_waiters) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_now    CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_future CONSTANT TIMESTAMPTZ := v_now + interval '1 second';
  v_first  holdfast_waiters;
BEGIN
  IF p_row.mode = 'exclusive' AND p_row.expires_at > v_now THEN
    RETURN coalesce(p_row.claim_id, 'plain:' || p_row.holder_id) <> p_claim.claim_id
      AND p_row.expires_at <= holdfast_latest_end(p_row) + interval '1 second';
  ELSIF p_row.contended IS NOT TRUE THEN
    RETURN false;
  END IF;
  IF p_row.mode = 'shared' AND EXISTS (
    SELECT FROM holdfast_leases
    WHERE lock_name = p_row.lock_name AND claim_id = p_claim.claim_id AND expires_at > clock_timestamp()
  ) THEN
    RETURN false;
  END IF;
  -- No claim overtakes the first waiter if that one is alive.
  SELECT * INTO v_first FROM holdfast_waiters WHERE lock_name = p_row.lock_name ORDER BY place LIMIT 1;
  IF v_first.expires_at > v_future + v_first.wait_ms * interval '1 ms' OR (p_row.mode = 'shared' AND EXISTS (
    SELECT FROM holdfast_leases
    WHERE lock_name = p_row.lock_name AND expires_at > v_future + ttl_ms * interval '1 ms'
  )) THEN
    RETURN false;
  ELSIF v_first.expires_at > v_now AND v_first.claim_id <> p_claim.claim_id THEN
    RETURN true;
  ELSIF p_row.mode <> 'shared' OR v_first.expires_at <= v_now THEN
    RETURN false;
  ELSIF p_claim.mode = 'exclusive' THEN
    RETURN EXISTS (
      SELECT FROM holdfast_leases WHERE lock_name = p_row.lock_name AND expires_at > clock_timestamp());
  END IF;
  RETURN p_claim.max_permits IS NOT NULL AND p_claim.permits > p_claim.max_permits - (
    SELECT coalesce(sum(permits), 0) FROM holdfast_leases
    WHERE lock_name = p_row.lock_name AND expires_at > clock_timestamp());
END
$$;

-- Keeps a claim's place in the queue, or takes one. A place that it did not renew in time is lost, and it goes to the
-- end: waiting_since of p_claim is when it asked.
-- Inputs:  the name's row, read without a lock; the claim, as holdfast_grant_waiters takes it; whether to wait for a
--          locked row (NULL: this transaction has locked it FOR UPDATE. It must not go through the gate then: others
--          keep it closed that wait for this row)
-- Outputs: place; NULL if the row is locked or gone, or if the claim holds the lock by now; seen, the row as it is now
CREATE OR REPLACE FUNCTION holdfast_join_queue(
  p_row distributed_locks, p_claim holdfast_waiters, p_patient BOOLEAN, OUT place BIGINT, OUT seen distributed_locks
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now TIMESTAMPTZ := clock_timestamp();
BEGIN
  seen := p_row;
  -- Keeping a place writes only that place. A locked place is being granted the lock, or given up. The name's row will
  -- show which.
  UPDATE holdfast_waiters SET expires_at = v_now + p_claim.wait_ms * interval '1 ms', wait_ms = p_claim.wait_ms,
    waiting_since = least(waiting_since, v_now), channel = p_claim.channel
  WHERE ctid = (
    SELECT ctid FROM holdfast_waiters
    WHERE claim_id = p_claim.claim_id AND lock_name || '' = p_claim.lock_name AND expires_at > p_claim.waiting_since
    FOR NO KEY UPDATE SKIP LOCKED
  ) RETURNING place INTO place;
  IF place IS NOT NULL THEN
    RETURN;
  END IF;
  seen := holdfast_lock_row(p_claim.lock_name, p_row.contended AND p_patient IS NOT NULL, p_patient, NULL);
  v_now := clock_timestamp();
  IF seen.lock_name IS NULL OR EXISTS (
    SELECT FROM holdfast_leases_on(p_claim.lock_name) WHERE claim_id = p_claim.claim_id)
  THEN
    RETURN;
  END IF;
  -- If the lock has become free meanwhile, the claim joins the queue all the same and is answered to ask again at once.
  -- Two claims that strengthened their locks of this row here would wait for each other.
  INSERT INTO holdfast_waiters AS w VALUES (
    p_claim.lock_name, nextval('holdfast_places'), p_claim.claim_id, p_claim.holder_id, p_claim.mode,
    p_claim.max_permits, p_claim.permits, p_claim.ttl_ms, p_claim.wait_ms, p_claim.metadata, p_claim.channel, v_now,
    v_now + p_claim.wait_ms * interval '1 ms')
  ON CONFLICT (claim_id, (lock_name || '')) DO UPDATE SET expires_at = excluded.expires_at,
    wait_ms = excluded.wait_ms, channel = excluded.channel, waiting_since = least(w.waiting_since, v_now),
    place = CASE WHEN w.expires_at > p_claim.waiting_since THEN w.place ELSE excluded.place END
  RETURNING w.place INTO place;
  IF NOT seen.contended THEN
    UPDATE distributed_locks SET contended = true WHERE lock_name = p_claim.lock_name;
  END IF;
END
$$;

-- Decides one claim. A claim id identifies one acquisition: asking again with it returns the same lease, renewed for
-- its time to live.
-- Inputs:  lock name, claim id, holder id, shared or exclusive, limit (NULL: none), permits, time to live in ms, how
--          long its place in the queue lasts without being renewed in ms (0: it does not wait), metadata (NULL: none),
--          channel, when it asked, whether to wait for a locked row; whether an earlier claim of the list on this name
--          was refused: the name is not free then, and its holder is in that answer
-- Outputs: fencing_token and acquired_at of its lease; or not_known, because another transaction keeps the row locked;
--          or, if it is refused, place in the queue (NULL: it has none), holder, a lease on the name as JSON (NULL:
--          none is known), and expires_at, when the first lease ends; and events
CREATE OR REPLACE FUNCTION holdfast_decide_claim(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_shared BOOLEAN, p_limit BIGINT, p_permits BIGINT,
  p_ttl_ms FLOAT8, p_wait_ms FLOAT8, p_metadata JSONB, p_channel TEXT, p_asked TIMESTAMPTZ, p_patient BOOLEAN,
  p_again BOOLEAN DEFAULT false,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT not_known BOOLEAN, OUT place BIGINT, OUT holder JSONB,
  OUT expires_at TIMESTAMPTZ, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_stale BOOLEAN;
BEGIN
  -- The common case: a free name. No token is drawn while the counter has to be raised.
  --
  -- Another client may take and release the name between the draw of a token and the insertion of its row. Then the
  -- token drawn here is the older one. If no token was drawn since, for any name, that cannot have happened. Otherwise
  -- it is drawn again, now that the row is ours. If the insertion had to wait for another client's row, the time that
  -- was read before is too old, and the lease counts from now. Otherwise its times stay, because an update that changes
  -- them touches the indexes.
  IF NOT p_shared AND NOT p_again THEN
    FOR v_try IN 1..3 LOOP
      INSERT INTO distributed_locks AS d (
        lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, ttl_ms)
      SELECT p_lock_name, p_holder_id, t, t + p_ttl_ms * interval '1 ms', p_metadata, p_claim_id,
        nextval('holdfast_tokens'), p_ttl_ms
      FROM clock_timestamp() AS t
      WHERE (SELECT true FROM distributed_locks e WHERE e.lock_name = p_lock_name) IS NULL
        AND holdfast_tokens_are_raised()
      ON CONFLICT (lock_name) DO NOTHING
      RETURNING d.fencing_token, d.acquired_at, d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass)
        OR d.acquired_at < clock_timestamp() - interval '10 ms'
      INTO fencing_token, acquired_at, v_stale;
      EXIT WHEN fencing_token IS NOT NULL OR NOT holdfast_raise_tokens();
    END LOOP;
    IF v_stale THEN
      UPDATE distributed_locks AS d SET fencing_token = nextval('holdfast_tokens'),
        acquired_at = CASE WHEN d.acquired_at < t - interval '10 ms' THEN t ELSE d.acquired_at END,
        expires_at = CASE WHEN d.acquired_at < t - interval '10 ms' THEN t + p_ttl_ms * interval '1 ms'
          ELSE d.expires_at END
      FROM clock_timestamp() AS t WHERE lock_name = p_lock_name
      RETURNING d.fencing_token, d.acquired_at INTO fencing_token, acquired_at;
    END IF;
    IF fencing_token IS NOT NULL THEN
      -- It may have a place left over where distributed_locks alone was emptied.
      IF p_wait_ms > 0 THEN
        DELETE FROM holdfast_waiters WHERE claim_id = p_claim_id AND lock_name || '' = p_lock_name;
      END IF;
      RETURN;
    END IF;
  END IF;

  -- A block of its own, because its variables cost time even where they are not used.
  DECLARE
    v_row     distributed_locks;
    v_claim   holdfast_waiters;
    v_got     RECORD;
    v_refused BOOLEAN;
  BEGIN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
    v_claim := ROW(p_lock_name, NULL, p_claim_id, p_holder_id, CASE WHEN p_shared THEN 'shared' ELSE 'exclusive' END,
      p_limit, p_permits, p_ttl_ms, p_wait_ms, p_metadata, p_channel, p_asked, NULL);
    v_refused := holdfast_must_refuse(v_row, v_claim);
    IF v_refused AND p_wait_ms > 0 THEN
      v_got := holdfast_join_queue(v_row, v_claim, p_patient);
      place := v_got.place;
      v_row := v_got.seen;
      v_refused := place IS NOT NULL;
    END IF;

    IF NOT v_refused THEN
      -- Already yours: a reply was lost, or the lock was handed over. First with the lock that a renewal needs: claims
      -- that are handed a shared lock together would wait for each other if each took the stronger one.
      v_got := holdfast_renew_lease(p_lock_name, p_claim_id, NULL, p_ttl_ms, p_patient);
      IF NOT v_got.done THEN
        v_row := holdfast_lock_row(p_lock_name, false, p_patient, p_holder_id);
        -- It may have been handed over while this call waited for the row.
        v_got := holdfast_renew_lease(p_lock_name, p_claim_id, NULL, p_ttl_ms, p_patient);
      END IF;
      IF v_got.done THEN
        fencing_token := v_got.fencing_token;
        acquired_at := v_got.acquired_at;
        events := v_got.events;
        RETURN;
      ELSIF v_got.done IS NULL OR v_row.lock_name IS NULL THEN
        not_known := true;
        RETURN;
      END IF;
      v_got := holdfast_grant_waiters(v_row, false, v_claim);
      fencing_token := v_got.fencing_token;
      acquired_at := v_got.acquired_at;
      place := v_got.place;
      events := v_got.events;
      IF fencing_token IS NOT NULL THEN
        RETURN;
      END IF;
    END IF;

    -- Thousands of waiters ask again in lists. Without this and the above, a list of 500 takes 1.8 times as long.
    IF p_again AND v_refused AND v_row.mode = 'exclusive' THEN
      expires_at := v_row.expires_at;
      RETURN;
    END IF;
    SELECT holdfast_lease_json(l), l.expires_at INTO holder, expires_at
    FROM holdfast_leases_on(p_lock_name) AS l LIMIT 1;
    IF p_wait_ms > 0 AND v_row.mode = 'shared' THEN
      SELECT min(l.expires_at) INTO expires_at FROM holdfast_leases_on(p_lock_name) AS l;
    END IF;
  END;
END
$$;

-- Decides a list of claims.
-- Inputs:  for each claim: lock name, claim id, holder id, shared or exclusive, limit (NULL: none), permits, time to
--          live in ms, how long its place in the queue lasts without being renewed in ms (0: it does not wait),
--          metadata as JSON text (NULL: none);
--          for all: the channel on which this process listens, and behind a colon a random text that no other call
--          has, and behind another colon the text polls if the process does not listen now; whether the commit need
--          not wait for the disk; how long to wait for a locked row in ms (NULL: 500); when they were asked for, if
--          that was in an earlier call (NULL: now)
-- Outputs: for each claim, in their order, a JSON text:
--            {"fencingToken", "grantedAt"}: it has a lease, which lasts for its time to live from now
--            {"refusedAt", "ahead", "until", "holder"}: refusedAt is the clock before anything was decided: a lease
--              that was handed over later is newer than the refusal. ahead is how many wait before it, at most 100, and
--              until the ms after which asking again may help ("Infinity": a lease has no end); both null: it does not
--              wait. holder is a lease on the name. It is null if none is known, and if an earlier refusal of the list
--              on the same name has it
--            NULL: not known, because another transaction keeps the row locked
CREATE OR REPLACE FUNCTION holdfast_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN,
  p_patience FLOAT8 DEFAULT NULL, p_asked TIMESTAMPTZ DEFAULT NULL
) RETURNS TEXT[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_asked   CONSTANT TIMESTAMPTZ := coalesce(p_asked, clock_timestamp());
  v_alone   CONSTANT BOOLEAN := pg_current_xact_id_if_assigned() IS NULL;
  -- One call in eight sweeps, eight times as many rows: on average twice the most that calls can leave behind. A call
  -- that others follow in the same transaction does not sweep: they would wait for rows while the swept ones stay
  -- locked.
  v_sweeps  CONSTANT BOOLEAN := p_asked IS NULL AND random() < 0.125;
  v_void    TEXT;
  v_order   INTEGER[];
  v_free    TEXT[];       -- names that were free, their claims with what was granted to them, and the next of them
  v_takers  TEXT[];
  v_tokens  BIGINT[];
  v_times   FLOAT8[];
  v_next    INTEGER;
  v_stale   TEXT[];
  v_answers TEXT[];
  v_at      INTEGER;
  v_got     RECORD;
  v_granted BOOLEAN;      -- whether any claim was granted
  v_named   TEXT;         -- the last name whose holder is in an answer
  v_locked  TEXT;         -- the last name whose row is locked
  v_queue   TEXT;         -- the name whose queue was read last: of its first hundred places those that are not expired,
  v_places  BIGINT[];     -- and for each of them when the first place up to it expires
  v_gone    TIMESTAMPTZ[];
  v_ahead   INTEGER;
  v_until   NUMERIC;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  IF p_patience IS NOT NULL THEN
    v_void := set_config('lock_timeout', p_patience::integer::text, true);
  END IF;
  IF v_count = 1 THEN
    v_order := '{1}';
  ELSE
    v_order := ARRAY(
      SELECT ord FROM unnest(p_names) WITH ORDINALITY AS c (name, ord) ORDER BY name COLLATE "C", ord);
    v_answers := array_fill(NULL::text, ARRAY[v_count]);
    v_next := 1;
    -- Free names, all at once. This repeats the first statements of holdfast_decide_claim: with 512 claims at once a
    -- process takes 1.8 times as many locks a second, and with 64 1.2 times as many. A name whose first claim is shared
    -- gets a row that is free, and is decided on below.
    v_void := holdfast_raise_tokens();
    WITH taken AS (
      INSERT INTO distributed_locks AS d (
        lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended, ttl_ms)
      -- The time and the token are read for each row: a list may have to wait for any of them.
      SELECT name, holder, clock_timestamp(),
        clock_timestamp() + CASE WHEN shared THEN 0 ELSE ttl END * interval '1 ms', metadata::jsonb,
        CASE WHEN NOT shared THEN claim END, nextval('holdfast_tokens'), shared, ttl
      FROM (
        SELECT * FROM unnest(p_names, p_claims, p_holders, p_shared, p_ttls, p_metadata)
          WITH ORDINALITY AS c (name, claim, holder, shared, ttl, metadata, ord) ORDER BY name COLLATE "C", ord
      ) AS c
      WHERE (SELECT true FROM distributed_locks e WHERE e.lock_name = c.name) IS NULL
      ON CONFLICT (lock_name) DO NOTHING
      RETURNING d.lock_name, d.claim_id, d.fencing_token, d.acquired_at,
        d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass)
          OR d.acquired_at < clock_timestamp() - interval '10 ms' AS stale
    )
    SELECT array_agg(lock_name) FILTER (WHERE stale), array_agg(lock_name) FILTER (WHERE NOT stale),
      array_agg(claim_id) FILTER (WHERE NOT stale), array_agg(fencing_token) FILTER (WHERE NOT stale),
      array_agg(extract(epoch FROM acquired_at) * 1000) FILTER (WHERE NOT stale)
    INTO v_stale, v_free, v_takers, v_tokens, v_times FROM taken WHERE claim_id IS NOT NULL;
    IF v_stale IS NOT NULL THEN
      -- Their claims are answered below, as if they asked again.
      UPDATE distributed_locks SET fencing_token = nextval('holdfast_tokens'), acquired_at = clock_timestamp()
      WHERE lock_name = ANY (v_stale);
    END IF;
  END IF;
  FOREACH v_at IN ARRAY v_order LOOP
    IF v_next IS NOT NULL THEN
      IF v_free[v_next] = p_names[v_at] AND v_takers[v_next] = p_claims[v_at] THEN
        v_answers[v_at] := json_build_object('fencingToken', v_tokens[v_next], 'grantedAt', v_times[v_next]);
        v_granted := true;
        v_next := v_next + 1;
        IF p_waits[v_at] > 0 THEN
          DELETE FROM holdfast_waiters WHERE claim_id = p_claims[v_at] AND lock_name || '' = p_names[v_at];
        END IF;
        CONTINUE;
      END IF;
      -- A claim on the same name must not overtake one that is not known.
      CONTINUE WHEN p_names[v_at] = v_locked;
    END IF;
    v_got := holdfast_decide_claim(p_names[v_at], p_claims[v_at], p_holders[v_at], p_shared[v_at], p_limits[v_at],
      p_permits[v_at], p_ttls[v_at], p_waits[v_at], p_metadata[v_at]::jsonb, p_channel, v_asked, v_count = 1,
      p_names[v_at] IS NOT DISTINCT FROM v_named);
    -- The common case of one claim needs nothing else.
    IF v_count = 1 AND NOT v_sweeps AND v_got.fencing_token IS NOT NULL AND v_got.events IS NULL THEN
      RETURN ARRAY[json_build_object(
        'fencingToken', v_got.fencing_token, 'grantedAt', extract(epoch FROM v_got.acquired_at) * 1000)];
    END IF;
    v_events := v_events || v_got.events;
    IF v_got.fencing_token IS NOT NULL THEN
      v_granted := true;
      v_answers[v_at] := json_build_object(
        'fencingToken', v_got.fencing_token, 'grantedAt', extract(epoch FROM v_got.acquired_at) * 1000);
      CONTINUE;
    ELSIF v_got.not_known THEN
      v_locked := p_names[v_at];
      CONTINUE;
    END IF;
    v_ahead := NULL;
    v_until := NULL;
    IF v_got.place IS NOT NULL THEN
      IF v_queue IS DISTINCT FROM p_names[v_at] THEN
        v_queue := p_names[v_at];
        SELECT array_agg(place ORDER BY place), array_agg(gone ORDER BY place) INTO v_places, v_gone FROM (
          SELECT place, min(expires_at) OVER (ORDER BY place) AS gone FROM (
            SELECT place, expires_at FROM holdfast_waiters WHERE lock_name = v_queue ORDER BY place LIMIT 100
          ) AS first WHERE expires_at > clock_timestamp()
        ) AS living;
      ELSIF cardinality(v_places) < 100 AND v_got.place > v_places[cardinality(v_places)] THEN
        v_gone := v_gone || least(v_gone[cardinality(v_places)], clock_timestamp() + p_waits[v_at] * interval '1 ms');
        v_places := v_places || v_got.place;
      END IF;
      -- The first waiter waits for a lease to end. The others wait for a place before them, which may be dead, to
      -- expire.
      v_ahead := coalesce(width_bucket(v_got.place - 1, v_places), 0);
      v_until := extract(epoch FROM CASE WHEN v_ahead = 0 THEN v_got.expires_at ELSE v_gone[v_ahead] END);
      v_until := coalesce(greatest(0, (v_until - extract(epoch FROM clock_timestamp())) * 1000), 0);
    END IF;
    v_answers[v_at] := json_build_object('refusedAt', extract(epoch FROM v_asked) * 1000, 'ahead', v_ahead,
      'until', v_until, 'holder', CASE WHEN v_named IS DISTINCT FROM p_names[v_at] THEN v_got.holder END);
    v_named := p_names[v_at];
  END LOOP;

  IF v_sweeps THEN
    v_events := v_events || holdfast_sweep(16 * v_count + 16);
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_events);
  ELSIF v_granted IS NULL THEN
    v_void := holdfast_set_durability(true, NOT v_alone);
  END IF;
  RETURN v_answers;
END
$$;

-- Decides claims that are granted all or none, each on a name of its own. All are exclusive, and none of them waits.
-- Inputs:  for each claim: lock name, claim id, holder id, time to live in ms, metadata as JSON text (NULL: none); for
--          all: relaxed, as above; how long to wait for each locked row in ms (NULL: such rows are skipped)
-- Outputs: for each claim as holdfast_acquire, or if another claim was refused: {"refusedAt", "free": true}: its name
--          is free; {"refusedAt", "leftOver": true}: it has a lease of an earlier call, which the client must release
--
-- No other client ever sees a part of the group. It is first judged without a lock: if a name is held, nothing is
-- written. If it cannot be granted after all, what was written is rolled back. Tokens that a rollback discards are only
-- skipped.
CREATE OR REPLACE FUNCTION holdfast_acquire_group(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_ttls FLOAT8[], p_metadata TEXT[], p_relaxed BOOLEAN,
  p_patience FLOAT8
) RETURNS TEXT[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '50ms' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_asked   CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_void    TEXT;
  v_answers TEXT[] := array_fill(NULL::text, ARRAY[v_count]);
  v_own     BOOLEAN[];
  v_refused BOOLEAN := false;
  v_at      INTEGER;
  v_row     distributed_locks;
  v_claim   holdfast_waiters;
  v_got     RECORD;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  IF p_patience IS NOT NULL THEN
    v_void := set_config('lock_timeout', p_patience::integer::text, true);
  END IF;
  FOR v_at IN 1..v_count LOOP
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_names[v_at];
    v_claim.claim_id := p_claims[v_at];
    v_claim.mode := 'exclusive';
    v_own[v_at] := v_row.mode = 'exclusive' AND v_row.claim_id = p_claims[v_at]
      AND v_row.expires_at > clock_timestamp();
    IF v_own[v_at] IS NOT TRUE AND holdfast_must_refuse(v_row, v_claim) THEN
      v_refused := true;
      v_answers[v_at] := json_build_object('refusedAt', extract(epoch FROM v_asked) * 1000,
        'holder', (SELECT holdfast_lease_json(l) FROM holdfast_leases_on(p_names[v_at]) AS l LIMIT 1));
    END IF;
  END LOOP;

  IF NOT v_refused THEN
    BEGIN
      FOR v_at IN SELECT ord FROM unnest(p_names) WITH ORDINALITY AS c (name, ord) ORDER BY name COLLATE "C" LOOP
        v_got := holdfast_decide_claim(p_names[v_at], p_claims[v_at], p_holders[v_at], false, NULL, 1, p_ttls[v_at], 0,
          p_metadata[v_at]::jsonb, '', v_asked, p_patience IS NOT NULL);
        IF v_got.fencing_token IS NULL THEN
          v_refused := v_got.not_known IS NOT TRUE;
          RAISE lock_not_available;
        END IF;
        v_events := v_events || v_got.events;
        v_answers[v_at] := json_build_object(
          'fencingToken', v_got.fencing_token, 'grantedAt', extract(epoch FROM v_got.acquired_at) * 1000);
      END LOOP;
      IF v_events IS NOT NULL THEN
        PERFORM holdfast_send_events(v_events);
      END IF;
      RETURN v_answers;
    EXCEPTION WHEN lock_not_available THEN
      v_answers := array_fill(NULL::text, ARRAY[v_count]);
      IF NOT v_refused THEN
        RETURN v_answers;
      END IF;
      v_answers[v_at] := json_build_object('refusedAt', extract(epoch FROM v_asked) * 1000, 'holder', v_got.holder);
    END;
  END IF;
  FOR v_at IN 1..v_count LOOP
    v_answers[v_at] := coalesce(v_answers[v_at], json_build_object('refusedAt', extract(epoch FROM v_asked) * 1000,
      CASE WHEN v_own[v_at] THEN 'leftOver' ELSE 'free' END, true)::text);
  END LOOP;
  RETURN v_answers;
END
$$;

-- Leases --------------------------------------------------------------------------------------------------------------

-- Renews one lease.
-- Inputs:  lock name, claim id, fencing token (NULL: any), time to live from now in ms, whether to wait for a locked
--          row
-- Outputs: done; false: it had ended, and is not created again; NULL: not known, because the row is locked;
--          fencing_token and acquired_at of the lease; events
CREATE OR REPLACE FUNCTION holdfast_renew_lease(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_ttl_ms FLOAT8, p_patient BOOLEAN,
  OUT done BOOLEAN, OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row    distributed_locks;
  v_before TIMESTAMPTZ;
  v_end    TIMESTAMPTZ;
BEGIN
  -- The common case: an exclusive lease without waiters. A list has renewed such leases all at once.
  IF p_patient THEN
    UPDATE distributed_locks AS d SET expires_at = clock_timestamp() + p_ttl_ms * interval '1 ms', ttl_ms = p_ttl_ms,
      acquired_at = least(d.acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR d.fencing_token = p_token)
      AND mode = 'exclusive' AND NOT contended AND expires_at > clock_timestamp()
    RETURNING true, d.fencing_token, d.acquired_at INTO done, fencing_token, acquired_at;
    IF done THEN
      RETURN;
    END IF;
  END IF;

  -- A lease that is not there, read without a lock, has ended and never comes back.
  SELECT l.expires_at INTO v_before FROM holdfast_leases_on(p_lock_name) AS l
  WHERE l.claim_id = p_claim_id AND (p_token IS NULL OR l.fencing_token = p_token);
  done := FOUND;
  IF NOT done THEN
    RETURN;
  END IF;
  IF p_patient THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR NO KEY UPDATE;
  ELSE
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      done := NULL;
      RETURN;
    END IF;
  END IF;
  IF v_row.mode = 'exclusive' THEN
    UPDATE distributed_locks AS d SET expires_at = clock_timestamp() + p_ttl_ms * interval '1 ms', ttl_ms = p_ttl_ms,
      acquired_at = least(d.acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name AND coalesce(claim_id, 'plain:' || holder_id) = p_claim_id
      AND (p_token IS NULL OR d.fencing_token = p_token) AND expires_at > clock_timestamp()
    RETURNING expires_at, coalesce(d.fencing_token, 0), d.acquired_at INTO v_end, fencing_token, acquired_at;
  ELSIF v_row.mode = 'shared' THEN
    UPDATE holdfast_leases AS l SET expires_at = clock_timestamp() + p_ttl_ms * interval '1 ms', ttl_ms = p_ttl_ms,
      acquired_at = least(l.acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR l.fencing_token = p_token)
      AND expires_at > clock_timestamp()
    RETURNING expires_at, l.fencing_token, l.acquired_at INTO v_end, fencing_token, acquired_at;
    IF v_end IS NOT NULL THEN
      UPDATE distributed_locks
      SET expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = p_lock_name)
      WHERE lock_name = p_lock_name;
    END IF;
  END IF;
  done := v_end IS NOT NULL;
  IF v_end < v_before AND v_row.contended THEN
    -- The first waiter would ask too late.
    events := holdfast_wake_first(p_lock_name, NULL);
  END IF;
END
$$;

-- Ends one lease or place in the queue, and hands the lock over to the next waiters.
-- Inputs:  lock name, claim id, fencing token (NULL: any; what the claim has, a lease or a place, is ended), whether to
--          wait for a locked row
-- Outputs: done, whether this call ended a lease that had not ended yet; NULL: not known, because the row is locked;
--          events
CREATE OR REPLACE FUNCTION holdfast_end_lease(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_patient BOOLEAN, OUT done BOOLEAN, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  -- The common case: an exclusive lease without waiters. A list has ended such leases all at once.
  IF p_patient THEN
    DELETE FROM distributed_locks
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR fencing_token = p_token)
      AND mode = 'exclusive' AND NOT contended AND expires_at > clock_timestamp();
    done := FOUND;
    IF done THEN
      RETURN;
    END IF;
  END IF;

  DECLARE
    v_row    distributed_locks;
    v_free   BOOLEAN := false;
    v_placed BOOLEAN := true;
    v_left   BIGINT;
  BEGIN
    done := false;
    IF p_token IS NOT NULL AND p_patient THEN
      -- If the row is no longer this lease's, the lease has ended, and there is nothing to wait for.
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
      IF v_row.mode = 'shared' OR v_row.claim_id = p_claim_id THEN
        v_row := holdfast_lock_row(p_lock_name, false, true, NULL);
      ELSE
        v_row := NULL;
      END IF;
    ELSE
      LOOP
        SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
        EXIT WHEN v_row.mode = 'shared' OR v_row.expires_at <= clock_timestamp()
          OR coalesce(v_row.claim_id, 'plain:' || v_row.holder_id) = p_claim_id;
        -- The claim does not hold the lock. It has a place at most, and leaving it frees nothing.
        IF NOT v_placed THEN
          RETURN;
        END IF;
        DELETE FROM holdfast_waiters WHERE ctid = (
          SELECT ctid FROM holdfast_waiters WHERE claim_id = p_claim_id AND lock_name || '' = p_lock_name
          FOR UPDATE SKIP LOCKED
        ) RETURNING place INTO v_left;
        IF v_left IS NOT NULL THEN
          events := holdfast_wake_first(p_lock_name, v_left);
          RETURN;
        END IF;
        -- If the place exists and is locked, it is being granted the lock: the row's lock will show it. If it does not
        -- exist, the row is read once more. A lease that replaced the place was committed together with its removal,
        -- and would otherwise be left behind.
        v_placed := EXISTS (SELECT FROM holdfast_waiters WHERE claim_id = p_claim_id AND lock_name || '' = p_lock_name);
        EXIT WHEN v_placed;
      END LOOP;
      v_row := holdfast_lock_row(p_lock_name, false, p_patient, NULL);
      IF v_row.lock_name IS NULL AND NOT p_patient THEN
        done := NULL;
        RETURN;
      END IF;
    END IF;

    IF v_row.mode = 'exclusive' THEN
      v_free := coalesce(v_row.claim_id, 'plain:' || v_row.holder_id) = p_claim_id
        AND (p_token IS NULL OR v_row.fencing_token = p_token);
      done := v_free AND v_row.expires_at > clock_timestamp();
    ELSIF v_row.mode = 'shared' THEN
      DELETE FROM holdfast_leases
      WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR fencing_token = p_token)
      RETURNING expires_at > clock_timestamp() INTO done;
      v_free := FOUND;
      done := coalesce(done, false);
    END IF;
    -- A holder has no place in the queue.
    IF NOT done THEN
      DELETE FROM holdfast_waiters WHERE claim_id = p_claim_id AND lock_name || '' = p_lock_name
      RETURNING place INTO v_left;
    END IF;
    IF v_row.lock_name IS NOT NULL AND (v_free OR v_left IS NOT NULL) THEN
      events := (holdfast_grant_waiters(v_row, v_free AND v_row.mode = 'exclusive', NULL)).events;
      IF v_left IS NOT NULL AND events IS NULL THEN
        events := holdfast_wake_first(p_lock_name, v_left);
      END IF;
    END IF;
  END;
END
$$;

-- Renews or releases a list of leases.
-- Inputs:  for each lease: lock name, claim id, fencing token, and the time to live from now in ms; NULL instead of the
--          times: releases. For all: relaxed, as in holdfast_acquire; how long to wait for a locked row in ms
-- Outputs: for each, in their order, as holdfast_renew_lease or holdfast_end_lease
CREATE OR REPLACE FUNCTION holdfast_change_leases(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN, p_patience FLOAT8 DEFAULT 1000
) RETURNS BOOLEAN[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_void    TEXT;
  v_done    INTEGER[];
  v_answers BOOLEAN[];
  v_at      INTEGER;
  v_got     RECORD;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  v_void := set_config('lock_timeout', p_patience::integer::text, true);
  -- Exclusive leases without waiters, of a list all at once. These two statements repeat the first ones of
  -- holdfast_renew_lease and holdfast_end_lease: a list of 512 takes half of the time.
  IF v_count = 1 THEN
    NULL;
  ELSIF p_ttls IS NOT NULL THEN
    WITH renewed AS (
      UPDATE distributed_locks d SET expires_at = clock_timestamp() + k.ttl * interval '1 ms', ttl_ms = k.ttl,
        acquired_at = least(d.acquired_at, clock_timestamp())
      FROM (
        SELECT own.at, c.ttl, c.ord
        FROM unnest(p_names, p_claims, p_tokens, p_ttls) WITH ORDINALITY AS c (name, claim, token, ttl, ord), LATERAL (
          SELECT d.ctid AS at FROM distributed_locks d
          WHERE d.lock_name = c.name AND d.claim_id = c.claim AND (c.token IS NULL OR d.fencing_token = c.token)
            AND d.mode = 'exclusive' AND NOT d.contended AND d.expires_at > clock_timestamp()
          FOR NO KEY UPDATE SKIP LOCKED
        ) AS own
      ) AS k WHERE d.ctid = k.at RETURNING k.ord
    )
    SELECT array_agg(ord) INTO v_done FROM renewed;
  ELSE
    WITH ended AS (
      DELETE FROM distributed_locks d USING (
        SELECT own.at, c.ord
        FROM unnest(p_names, p_claims, p_tokens) WITH ORDINALITY AS c (name, claim, token, ord), LATERAL (
          SELECT d.ctid AS at FROM distributed_locks d
          WHERE d.lock_name = c.name AND d.claim_id = c.claim AND (c.token IS NULL OR d.fencing_token = c.token)
            AND d.mode = 'exclusive' AND NOT d.contended AND d.expires_at > clock_timestamp()
          FOR UPDATE SKIP LOCKED
        ) AS own
      ) AS k WHERE d.ctid = k.at RETURNING k.ord
    )
    SELECT array_agg(ord) INTO v_done FROM ended;
  END IF;
  IF v_done IS NOT NULL THEN
    v_answers := array_fill(NULL::boolean, ARRAY[v_count]);
    FOREACH v_at IN ARRAY v_done LOOP
      v_answers[v_at] := true;
    END LOOP;
  END IF;
  FOR v_at IN 1..v_count LOOP
    CONTINUE WHEN v_answers[v_at];
    IF p_ttls IS NULL THEN
      v_got := holdfast_end_lease(p_names[v_at], p_claims[v_at], p_tokens[v_at], v_count = 1);
    ELSE
      v_got := holdfast_renew_lease(p_names[v_at], p_claims[v_at], p_tokens[v_at], p_ttls[v_at], v_count = 1);
    END IF;
    -- The common case of one lease needs nothing else.
    IF v_count = 1 AND v_got.events IS NULL THEN
      RETURN ARRAY[v_got.done];
    END IF;
    v_answers[v_at] := v_got.done;
    v_events := v_events || v_got.events;
  END LOOP;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_events);
  END IF;
  RETURN v_answers;
END
$$;

-- Force ---------------------------------------------------------------------------------------------------------------

-- Writes down all current leases on a name as released by force, the last 1,000 of them. The row must be locked.
-- Inputs:  lock name; who releases them
-- Outputs: their claim ids; NULL: there are none
CREATE OR REPLACE FUNCTION holdfast_record_forced(p_lock_name TEXT, p_by TEXT) RETURNS TEXT[]
LANGUAGE plpgsql AS $$
DECLARE
  v_claims TEXT[];
  v_last   BIGINT;
BEGIN
  WITH recorded AS (
    INSERT INTO holdfast_forced_releases (
      released_at, released_by, database_role, lock_name, holder_id, claim_id, fencing_token, acquired_at, expires_at,
      metadata)
    SELECT clock_timestamp(), p_by, session_user, lock_name, holder_id, claim_id, fencing_token, acquired_at,
      expires_at, metadata
    FROM holdfast_leases_on(p_lock_name) RETURNING id, claim_id
  )
  SELECT array_agg(claim_id), max(id) INTO v_claims, v_last FROM recorded;
  DELETE FROM holdfast_forced_releases WHERE id <= v_last - 1000;
  RETURN v_claims;
END
$$;

-- Ends all leases on a name, with a record of who did it. It is for people: no client calls it by itself. The next
-- waiters are granted the lock, as after any release. The former holder is not notified. Its next renewal or release
-- answers that the lease is lost, and a resource that checks fencing tokens refuses it from the next grant on.
-- Inputs:  the lock name; who does it and why, as free text
-- Outputs: how many leases were ended: 0 if the lock was free, 1 for an exclusive lease, the number of shared leases
-- Codes:   22023  p_by is empty
--          55P03  another transaction kept the row locked for more than 4 s; nothing was done
CREATE OR REPLACE FUNCTION force_release_lock(p_lock_name VARCHAR, p_by VARCHAR) RETURNS INTEGER
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_row    distributed_locks;
  v_claims TEXT[];
  v_claim  TEXT;
  v_events JSONB[];
BEGIN
  IF coalesce(p_by, '') = '' THEN
    RAISE EXCEPTION 'p_by must say who releases it' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  v_row := holdfast_lock_row(p_lock_name, false, true, NULL);
  -- All current leases are read before any of them is ended: a waiter that is granted the lock then must keep it.
  v_claims := holdfast_record_forced(p_lock_name, p_by);
  FOREACH v_claim IN ARRAY coalesce(v_claims, '{}') LOOP
    v_events := v_events || (holdfast_end_lease(p_lock_name, v_claim, NULL, true)).events;
  END LOOP;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_events);
  END IF;
  RETURN coalesce(cardinality(v_claims), 0);
END
$$;

-- A claim that takes the lock from its holders, including plain clients. Each lease is recorded, as released by the new
-- holder or by what the metadata has under forcedBy. Waiters keep their places. Asking again with the same claim id
-- returns the same lease, renewed for its time to live.
-- Holders that lost a lease are notified on the channel holdfast_stolen: {"lost": [claim id, ...], "by": holder id},
-- with at most 50 claim ids in one message.
-- Inputs:  lock name, claim id, holder id, time to live in ms, metadata as JSON text (NULL: none), relaxed as in
--          holdfast_acquire, the largest fencing token that it may end (NULL: any)
-- Outputs: fencing_token, and granted_at in ms, of its lease. Both are NULL if the name has a lease with a larger token
--          than it may end; then nothing is changed
-- Codes:   55P03  another transaction kept the row locked for too long; nothing was done
CREATE OR REPLACE FUNCTION holdfast_acquire_by_force(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl_ms FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN,
  p_up_to BIGINT, OUT fencing_token BIGINT, OUT granted_at FLOAT8
)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_void   TEXT;
  v_row    distributed_locks;
  v_got    RECORD;
  v_lost   TEXT[];
  v_now    TIMESTAMPTZ;
  v_events JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  v_void := holdfast_raise_tokens();
  v_row := holdfast_lock_row(p_lock_name, false, true, p_holder_id);
  v_got := holdfast_renew_lease(p_lock_name, p_claim_id, NULL, p_ttl_ms, true);
  IF v_got.done THEN
    fencing_token := v_got.fencing_token;
    granted_at := extract(epoch FROM v_got.acquired_at) * 1000;
    v_events := v_got.events;
  ELSIF NOT EXISTS (SELECT FROM holdfast_leases_on(p_lock_name) AS l WHERE l.fencing_token > p_up_to) THEN
    v_now := clock_timestamp();
    v_lost := holdfast_record_forced(p_lock_name, coalesce(p_metadata::jsonb ->> 'forcedBy', p_holder_id));
    IF v_lost IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
      PERFORM pg_notify('holdfast_stolen', jsonb_build_object('lost', v_lost[n : n + 49], 'by', p_holder_id)::text)
      FROM generate_series(1, cardinality(v_lost), 50) AS n;
    END IF;
    DELETE FROM holdfast_leases WHERE lock_name = p_lock_name;
    DELETE FROM holdfast_waiters WHERE claim_id = p_claim_id AND lock_name || '' = p_lock_name;
    -- contended stays as it is: if there are no waiters any more, the next release finds that out.
    UPDATE distributed_locks SET mode = 'exclusive', claim_id = p_claim_id, holder_id = p_holder_id,
      metadata = p_metadata::jsonb, fencing_token = nextval('holdfast_tokens'), acquired_at = v_now,
      expires_at = v_now + p_ttl_ms * interval '1 ms', ttl_ms = p_ttl_ms
    WHERE lock_name = p_lock_name RETURNING fencing_token INTO fencing_token;
    granted_at := extract(epoch FROM v_now) * 1000;
    -- The first waiter knows when the lease before this one would have ended. This one may end sooner.
    v_events := CASE WHEN v_row.contended THEN holdfast_wake_first(p_lock_name, NULL) END;
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_events);
  END IF;
END
$$;

-- The plain functions -------------------------------------------------------------------------------------------------
--
-- They are for clients in any language, psql included. A client that calls only these excludes Holdfast and is excluded
-- by it. Call each in a transaction of its own. Until the commit the lock is invisible to other clients, and those that
-- ask for the same name are answered that its state is not known.
-- Older functions of these names that take two texts and return a boolean are replaced. Other functions of these names
-- stay.
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

-- Outputs: true: p_holder_id holds the lock for p_ttl_seconds from now. The same holder asking again extends it.
--          false: another holds it, or others wait for it
-- Codes:   22023  an argument is out of range
CREATE OR REPLACE FUNCTION acquire_lock(
  p_lock_name VARCHAR, p_holder_id VARCHAR, p_ttl_seconds INTEGER DEFAULT 30, p_metadata JSONB DEFAULT '{}'
) RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_got RECORD;
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
  v_got := holdfast_decide_claim(p_lock_name, 'plain:' || p_holder_id, p_holder_id, false, NULL, 1,
    p_ttl_seconds * 1000::float8, 0, p_metadata, '', clock_timestamp(), true);
  IF v_got.fencing_token IS NOT NULL THEN
    UPDATE distributed_locks SET metadata = p_metadata
    WHERE lock_name = p_lock_name AND metadata IS DISTINCT FROM p_metadata;
  END IF;
  -- Rows of other names are not swept here: they would stay locked until the end of the caller's transaction.
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_got.events);
  END IF;
  RETURN v_got.fencing_token IS NOT NULL;
END
$$;

-- Outputs: true: p_holder_id held the lock, and it is now free. false: it did not hold it, or its time was over
CREATE OR REPLACE FUNCTION release_lock(p_lock_name VARCHAR, p_holder_id VARCHAR) RETURNS BOOLEAN
LANGUAGE plpgsql SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_got RECORD;
BEGIN
  v_got := holdfast_end_lease(p_lock_name, 'plain:' || p_holder_id, NULL, true);
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_send_events(v_got.events);
  END IF;
  RETURN v_got.done;
END
$$;

-- Reading the state ---------------------------------------------------------------------------------------------------

-- A page of leases and waiters.
-- Inputs:  only this name (NULL: any); only names with this prefix; only names after this one, byte by byte (NULL:
--          all); the maximum number of names
-- Outputs: {leases, waiters, next}; next is missing on the last page
CREATE OR REPLACE FUNCTION holdfast_inspect(
  p_lock_name TEXT, p_prefix TEXT, p_after TEXT, p_page_size INTEGER
) RETURNS JSONB
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_now     CONSTANT TIMESTAMPTZ := clock_timestamp();
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

  SELECT jsonb_agg(holdfast_lease_json(l) ORDER BY l.lock_name COLLATE "C", l.fencing_token) INTO v_leases
  FROM unnest(v_names) AS name, holdfast_leases_on(name) AS l;
  SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
    'lockName', w.lock_name, 'claimId', w.claim_id, 'holderId', w.holder_id, 'mode', w.mode, 'limit', w.max_permits,
    'permits', w.permits, 'waitingSinceMs', extract(epoch FROM w.waiting_since) * 1000)) ORDER BY w.lock_name, w.place)
  INTO v_waiters FROM holdfast_waiters w WHERE w.lock_name = ANY (v_names) AND w.expires_at > v_now;
  RETURN jsonb_build_object('leases', coalesce(v_leases, '[]'), 'waiters', coalesce(v_waiters, '[]'))
    || CASE WHEN v_more THEN jsonb_build_object('next', v_names[p_page_size]) ELSE '{}' END;
END
$$;

-- For people: holders and waiters, since when, and when each of them expires.
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

-- Rate limits ---------------------------------------------------------------------------------------------------------
--
-- The generic cell rate algorithm. A request may have several limits: it is charged under all of them, or under none.
-- protocol/README.md defines the numbers, and schema.sql the elements of a state.

-- The limits of a state beside those of a policy.
-- Inputs:  the state before; now (ms); where the policy begins in the list of policies; the policies, as
--          holdfast_take_rate_step takes them
-- Outputs: the state from its third element on, as of a row with a block. The policy's limits come first, in their
--          order; the moment of a new one is 0. Limits that are not in the policy keep their moments and blocks. Those
--          that ran out more than ten seconds ago are dropped, as a row would be. NULL if more than 32 limits are left
CREATE OR REPLACE FUNCTION holdfast_merge_rate_limits(
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

-- Takes a step of a policy.
-- Inputs:  the state before, or NULL; now (ms); how often to take the step at most (0: only look); where the policy
--          begins in the list of policies; the policies. A policy is the number of its limits, then for each limit the
--          three numbers of its id, then for each limit by how much one step moves its moment and how far ahead of now
--          the moment may be (both in ms)
-- Outputs: the state after. If the name has too many limits: the state before, with -1 as its first element. If one of
--          the policy's limits is blocked for n ms, no step is taken, and the first element is -1 - n
CREATE OR REPLACE FUNCTION holdfast_take_rate_step(
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
    v_limits := holdfast_merge_rate_limits(p_state, p_now, p_policy, p_policies);
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

-- Takes steps on a list of names.
-- Inputs:  names, each once; for each how often to take its step at most (0: only look), and where its policy begins;
--          the policies, as holdfast_take_rate_step takes them. Names that take a step come first, sorted byte by
--          byte, so that lists never deadlock
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
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_void   TEXT;
  v_at     TIMESTAMPTZ := clock_timestamp();
  v_now    FLOAT8 := extract(epoch FROM v_at) * 1000;
  v_answer FLOAT8[];
  v_looked FLOAT8[];
BEGIN
  IF 0 = ANY (p_counts) THEN
    WITH looked AS MATERIALIZED (
      SELECT holdfast_take_rate_step(
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
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  WITH done AS (
    INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
    SELECT name, state, policy, v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms'
    FROM (
      SELECT name, policy, holdfast_take_rate_step(NULL, v_now, count, policy, p_policies) AS state
      FROM unnest(p_names, p_counts, p_chosen) AS asked (name, count, policy)
      WHERE count > 0
      OFFSET 0
    ) AS fresh
    ON CONFLICT (name) DO UPDATE SET (state, policy, expires_at) = (
      SELECT state, excluded.policy,
        CASE WHEN r.expires_at >= v_at + interval '5 s' + (state[2] - v_now) * interval '1 ms'
        THEN r.expires_at ELSE v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms' END
      FROM (
        SELECT holdfast_take_rate_step(r.state, v_now, excluded.state[1], excluded.policy, p_policies) AS state
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

-- Blocks or resets the limits of a name.
-- Inputs:  a name; a policy, as holdfast_take_rate_step takes it; for how many ms its limits are blocked from now on,
--          replacing any earlier block (0: ends a block), or NULL: resets the limits and ends a block
-- Outputs: as holdfast_consume for a name that only looks, after the change
--
-- Limits that are not in the policy stay as they are.
CREATE OR REPLACE FUNCTION holdfast_change_rate(
  p_name TEXT, p_policy FLOAT8[], p_block FLOAT8, p_relaxed BOOLEAN) RETURNS FLOAT8[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_void   TEXT;
  v_at     TIMESTAMPTZ;
  v_now    FLOAT8;
  v_own    INTEGER := p_policy[1];
  v_all    INTEGER;
  v_state  FLOAT8[];
  v_limits FLOAT8[];
  v_latest FLOAT8 := 0;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  -- The row is created if there is none, and is locked either way: a concurrent step comes before this or after it.
  INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
  VALUES (p_name, holdfast_take_rate_step(NULL, 0, 0, 1, p_policy), 1, clock_timestamp() + interval '10 s')
  ON CONFLICT (name) DO UPDATE SET policy = excluded.policy
  RETURNING state INTO v_state;
  v_at := clock_timestamp();
  v_now := extract(epoch FROM v_at) * 1000;
  v_limits := holdfast_merge_rate_limits(v_state, v_now, 1, p_policy);
  IF v_limits IS NULL THEN RETURN ARRAY[-1, 0]; END IF;
  v_all := v_limits[1];
  FOR j IN 1..v_own LOOP
    IF p_block IS NULL THEN v_limits[1 + 3 * v_all + j] := 0; END IF;
    v_limits[1 + 4 * v_all + j] := CASE WHEN p_block > 0 THEN v_now + p_block ELSE 0 END;
    v_limits[1 + 5 * v_all + j] := coalesce(p_block, 0);
  END LOOP;
  FOR j IN 1..v_all LOOP
    v_latest := greatest(v_latest, v_limits[1 + 3 * v_all + j], v_limits[1 + 4 * v_all + j]);
  END LOOP;
  -- The step drops what no limit needs any more.
  v_state := holdfast_take_rate_step(ARRAY[0, v_latest] || v_limits, v_now, 0, 1, p_policy);
  -- The ten seconds for which a row is kept: a step that waits for this one counts from an earlier time.
  IF v_latest <= v_now - 10000 THEN
    DELETE FROM holdfast_rates WHERE name = p_name;
  ELSE
    UPDATE holdfast_rates
    SET state = v_state, expires_at = v_at + interval '10 s' + greatest(v_latest - v_now, 0) * interval '1.25 ms'
    WHERE name = p_name;
  END IF;
  RETURN ARRAY[v_state[1], v_own] || ARRAY(
    SELECT greatest(v_state[3 + 3 * v_all + j] - v_now, 0) FROM generate_series(1, v_own) AS j ORDER BY j);
END
$$;

-- The procedures that a client calls ----------------------------------------------------------------------------------
--
-- They run the functions above, in transactions of their own.
-- Inputs:  as the functions without _call; NULL for each output
-- Outputs: as the functions without _call; arrays as text. answers of claims is one JSON text: an array
-- Codes:   2D000  called inside a transaction that the caller has begun; nothing was done
--          55P03  a list of one whose row another transaction kept locked for too long; nothing was done
--
-- In a transaction of the caller, a ROLLBACK would undo a grant, a renewal or a release after the client has acted on
-- it, and there would be two holders. So each procedure begins with a COMMIT. By itself, that ends a transaction that
-- has done nothing yet. Inside a transaction block, PostgreSQL refuses it. (Timestamps cannot tell the two apart: in
-- the extended protocol a transaction begins with Parse or Bind, and its statement with Execute.)
--
-- A list first does all that it can without waiting, and commits it. Then, in a second transaction, it waits a little
-- for each of the rows that were locked: 50 ms for one and 250 ms for all, or for renewals a tenth of their time to
-- live. Other clients need no longer than that for a row. A transaction that stays open longer costs only its own rows
-- their answers.
-- The second transaction takes its rows in one order, byte by byte, and the first never waits for an existing row. So
-- lists do not deadlock.
-- lock_timeout also ends waits for a file that another session makes grow. The context of the error tells them apart:
-- in every language it has the place of a row, such as (0,1).

-- Ends the transaction and begins a new one that is READ COMMITTED, even if that is not the default: with a snapshot
-- that is taken too early, every concurrent change would be an error. The default is read before the COMMIT, because
-- afterwards reading it would be a query, and the level can only be set before the first query. The level of this
-- transaction does not tell: an earlier call may have set it.
CREATE OR REPLACE PROCEDURE holdfast_begin()
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('default_transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $holdfast$
DECLARE
  v_count    CONSTANT INTEGER := cardinality(p_names);
  v_asked    TIMESTAMPTZ;
  v_answers  TEXT[];
  v_patience FLOAT8;
  v_context  TEXT;
  v_until    TIMESTAMPTZ;
  v_at       INTEGER;
  v_locked   TEXT;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL :"schema".holdfast_begin();
  END IF;
  IF v_count = 1 THEN
    v_answers := :"schema".holdfast_acquire(
      p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata, p_channel, p_relaxed);
    answers := '[' || v_answers[1] || ']';
    RETURN;
  END IF;
  v_asked := clock_timestamp();
  FOREACH v_patience IN ARRAY '{50,2000}'::float8[] LOOP
    BEGIN
      v_answers := :"schema".holdfast_acquire(
        p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata, p_channel, p_relaxed,
        v_patience);
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      -- Another transaction has taken a free name and not committed, or keeps a waiter's place locked. So the claims
      -- are decided one by one. Or no row was waited for, but a file that grows on a slow disk. That needs patience.
      GET STACKED DIAGNOSTICS v_context = PG_EXCEPTION_CONTEXT;
      v_answers := array_fill(NULL::text, ARRAY[v_count]);
      EXIT WHEN v_context ~ '[(][0-9]+,[0-9]+[)]';
    END;
  END LOOP;
  IF array_position(v_answers, NULL) IS NOT NULL THEN
    CALL :"schema".holdfast_begin();
    v_until := clock_timestamp() + interval '250 ms';
    FOR v_at IN SELECT ord FROM unnest(p_names, v_answers) WITH ORDINALITY AS c (name, answer, ord)
      WHERE answer IS NULL ORDER BY name COLLATE "C", ord
    LOOP
      EXIT WHEN clock_timestamp() > v_until + interval '1 s';
      -- A claim on the same name must not overtake one that is not known.
      CONTINUE WHEN p_names[v_at] = v_locked;
      BEGIN
        v_answers[v_at] := (:"schema".holdfast_acquire(p_names[v_at : v_at], p_claims[v_at : v_at],
          p_holders[v_at : v_at], p_shared[v_at : v_at], p_limits[v_at : v_at], p_permits[v_at : v_at],
          p_ttls[v_at : v_at], p_waits[v_at : v_at], p_metadata[v_at : v_at], p_channel, p_relaxed,
          greatest(1, least(50, extract(epoch FROM v_until - clock_timestamp()) * 1000)), v_asked))[1];
      EXCEPTION WHEN lock_not_available THEN
        v_locked := p_names[v_at];  -- The claim stays not known.
      END;
    END LOOP;
  END IF;
  answers := '[' || array_to_string(v_answers, ',', 'null') || ']';
END
$holdfast$;

-- Inputs: for each claim as holdfast_acquire_group, and its group id. The claims of a group are next to each other
CREATE OR REPLACE PROCEDURE holdfast_call_acquire_groups(
  p_names TEXT[], p_claims TEXT[], p_groups TEXT[], p_holders TEXT[], p_ttls FLOAT8[], p_metadata TEXT[],
  p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $holdfast$
DECLARE
  v_answers TEXT[];
  v_found   TEXT[];
  v_until   TIMESTAMPTZ;
  v_group   RECORD;
BEGIN
  -- First without waiting, all in one transaction. Then, in one of its own, each group that another transaction kept
  -- from being decided.
  FOR v_try IN 1..2 LOOP
    CALL :"schema".holdfast_begin();
    FOR v_group IN
      SELECT min(ord) AS first, max(ord) AS last FROM unnest(p_groups) WITH ORDINALITY AS g (id, ord)
      WHERE v_answers[ord] IS NULL GROUP BY id ORDER BY 1
    LOOP
      IF v_try = 2 THEN
        CALL :"schema".holdfast_begin();
        v_until := coalesce(v_until, clock_timestamp() + interval '250 ms');
        EXIT WHEN clock_timestamp() > v_until + interval '1 s';
      END IF;
      v_found := :"schema".holdfast_acquire_group(
        p_names[v_group.first : v_group.last], p_claims[v_group.first : v_group.last],
        p_holders[v_group.first : v_group.last], p_ttls[v_group.first : v_group.last],
        p_metadata[v_group.first : v_group.last], p_relaxed,
        -- Not without CASE: least() ignores a NULL.
        CASE WHEN v_try = 2 THEN
          greatest(1, least(50, extract(epoch FROM v_until - clock_timestamp()) * 1000)) END);
      v_answers[v_group.first : v_group.last] := v_found;
    END LOOP;
    EXIT WHEN array_position(v_answers, NULL) IS NULL;
  END LOOP;
  answers := '[' || array_to_string(v_answers, ',', 'null') || ']';
END
$holdfast$;

CREATE OR REPLACE PROCEDURE holdfast_call_acquire_by_force(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl_ms FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN,
  p_up_to BIGINT, INOUT fencing_token TEXT, INOUT granted_at TEXT
)
LANGUAGE plpgsql AS $holdfast$
DECLARE
  v_got RECORD;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL :"schema".holdfast_begin();
  END IF;
  v_got := :"schema".holdfast_acquire_by_force(
    p_lock_name, p_claim_id, p_holder_id, p_ttl_ms, p_metadata, p_relaxed, p_up_to);
  fencing_token := v_got.fencing_token;
  granted_at := v_got.granted_at;
END
$holdfast$;

CREATE OR REPLACE PROCEDURE holdfast_call_change_leases(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $holdfast$
DECLARE
  v_count    CONSTANT INTEGER := cardinality(p_names);
  v_answers  BOOLEAN[];
  v_alone    FLOAT8;      -- how long to wait for a locked row, in ms: in a list of one; of a list, for each and for all
  v_each     FLOAT8;
  v_all      FLOAT8;
  v_patience FLOAT8;
  v_context  TEXT;
  v_until    TIMESTAMPTZ;
  v_at       INTEGER;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL :"schema".holdfast_begin();
  END IF;
  IF p_ttls IS NOT NULL THEN
    v_alone := greatest(1, least(1000, (SELECT min(ttl) FROM unnest(p_ttls) AS ttl) / 10));
  END IF;
  IF v_count = 1 THEN
    answers := :"schema".holdfast_change_leases(
      p_names, p_claims, p_tokens, p_ttls, p_relaxed, coalesce(v_alone, 1000));
    RETURN;
  END IF;
  v_each := coalesce(greatest(1, v_alone / 4), 50);
  v_all := coalesce(v_alone, 250);
  FOREACH v_patience IN ARRAY ARRAY[least(50, v_all), 2000] LOOP
    BEGIN
      v_answers := :"schema".holdfast_change_leases(p_names, p_claims, p_tokens, p_ttls, p_relaxed, v_patience);
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      -- A name's row was not locked, but a row of its shared leases or of its next waiter was. So the leases are
      -- changed one by one. Or a file grows on a slow disk, as above.
      GET STACKED DIAGNOSTICS v_context = PG_EXCEPTION_CONTEXT;
      v_answers := array_fill(NULL::boolean, ARRAY[v_count]);
      EXIT WHEN v_context ~ '[(][0-9]+,[0-9]+[)]';
    END;
  END LOOP;
  IF array_position(v_answers, NULL) IS NOT NULL THEN
    CALL :"schema".holdfast_begin();
    v_until := clock_timestamp() + v_all * interval '1 ms';
    FOR v_at IN SELECT ord FROM unnest(p_names, v_answers) WITH ORDINALITY AS c (name, answer, ord)
      WHERE answer IS NULL ORDER BY name COLLATE "C", ord
    LOOP
      EXIT WHEN clock_timestamp() > v_until + interval '1 s';
      BEGIN
        v_answers[v_at] := (:"schema".holdfast_change_leases(
          p_names[v_at : v_at], p_claims[v_at : v_at], p_tokens[v_at : v_at], p_ttls[v_at : v_at], p_relaxed,
          greatest(1, least(v_each, extract(epoch FROM v_until - clock_timestamp()) * 1000))))[1];
      EXCEPTION WHEN lock_not_available THEN
        NULL;  -- The lease stays not known.
      END;
    END LOOP;
  END IF;
  answers := v_answers;
END
$holdfast$;

-- A ROLLBACK of the caller would give back units that it has already used.
CREATE OR REPLACE PROCEDURE holdfast_call_consume(
  p_names TEXT[], p_counts INTEGER[], p_chosen INTEGER[], p_policies FLOAT8[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $holdfast$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL :"schema".holdfast_begin();
  END IF;
  answers := :"schema".holdfast_consume(p_names, p_counts, p_chosen, p_policies, p_relaxed);
END
$holdfast$;

CREATE OR REPLACE PROCEDURE holdfast_call_change_rate(
  p_name TEXT, p_policy FLOAT8[], p_block FLOAT8, p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $holdfast$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL :"schema".holdfast_begin();
  END IF;
  answers := :"schema".holdfast_change_rate(p_name, p_policy, p_block, p_relaxed);
END
$holdfast$;
