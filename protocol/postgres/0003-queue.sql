-- Migration 3: who gets a lock next. Internal: called by the functions of the later migrations.
--
-- A change of a name first locks its row, no more strongly than it needs:
--   FOR UPDATE         the holder changes: a grant, a release, a hand-over. Excludes all others
--   FOR NO KEY UPDATE  the end of a lease changes, or the row is marked as contended
--   FOR KEY SHARE      a claim joins the queue of a name that is already contended. Compatible with FOR NO KEY UPDATE,
--                      so a renewal never waits for claims, however many there are
--   none               a claim is refused, keeps its place in the queue of a held lock, or leaves the queue. It touches
--                      only its own row in holdfast_waiters. So code that removes a waiter from the queue must check
--                      that the waiter was still there
--
-- holdfast_admit(p_row, p_free, p_claim)
-- Inputs:  p_row        the current row of distributed_locks, locked FOR UPDATE by this transaction
--          p_free       the exclusive lease in that row has just been released
--          p_claim      the claim that asks for the lock now, as a waiter without a place; NULL: none. waiting_since is
--                       when it asked: a place that had not expired by then is kept, however long the claim waited for
--                       the row's lock. lasts is zero if it does not wait
-- Outputs: fencing_token, acquired_at  of the lease that p_claim was granted; NULL: it was refused
--          place        of p_claim in the queue; NULL: it has none
--          events       the notifications to send, see holdfast_tell
--
-- Waiters are admitted from the front of the queue, as many as fit beside the existing leases and beside each other.
-- Each is judged by its own mode and limit. No waiter overtakes the first one that does not fit. An admitted waiter has
-- its lease from this moment and is notified. It may be dead, so until it asks again its lease lasts no longer than its
-- place would have.
-- A lease or a place that ends later than a renewal now would set was written before the server's clock was set back,
-- and has not been renewed since. It would outlive its holder by as much as the clock went back. So it ends as if it
-- had been renewed now.
-- Only the front of the queue is read, and dead waiters are removed when they reach it. So a hand-over costs the same
-- however many wait.

-- How long an exclusive lease lasts after it was granted or renewed. For a plain client's lease only its beginning and
-- end are known. The result is in seconds, because a day is not always 24 hours long where clocks change in spring. It
-- is NULL for a plain client's lease without an end (infinity): no clock that was set back explains that one.
CREATE OR REPLACE FUNCTION holdfast_lasts(p_row distributed_locks) RETURNS INTERVAL
LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(CASE WHEN p_row.claim_id IS NOT NULL THEN p_row.lasts END,
    CASE WHEN isfinite(p_row.expires_at) AND isfinite(p_row.acquired_at)
      THEN make_interval(secs => extract(epoch FROM p_row.expires_at - p_row.acquired_at)) END)
$$;

CREATE OR REPLACE FUNCTION holdfast_admit(
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
  v_raised    BOOLEAN;
  v_future    CONSTANT TIMESTAMPTZ := v_now + interval '1 second';
  v_ahead     BOOLEAN;
BEGIN
  IF v_row.mode = 'shared' THEN
    DELETE FROM holdfast_leases WHERE lock_name = v_name AND expires_at <= v_now;
    SELECT count(*), coalesce(sum(permits), 0), bool_or(expires_at > v_future + lasts) INTO v_leases, v_permits, v_ahead
    FROM holdfast_leases WHERE lock_name = v_name;
    IF v_ahead THEN
      UPDATE holdfast_leases SET acquired_at = least(acquired_at, v_now), expires_at = v_now + lasts
      WHERE lock_name = v_name AND expires_at > v_future + lasts;
    END IF;
    v_changed := true;
  ELSIF v_held AND v_row.expires_at > v_future + holdfast_lasts(v_row) THEN
    v_row.expires_at := v_now + holdfast_lasts(v_row);
    UPDATE distributed_locks SET acquired_at = least(acquired_at, v_now), expires_at = v_row.expires_at
    WHERE lock_name = v_name;
  END IF;
  IF v_asks AND NOT v_held THEN
    UPDATE holdfast_waiters SET expires_at = v_now + p_claim.lasts, lasts = p_claim.lasts,
      waiting_since = least(waiting_since, v_now), channel = p_claim.channel
    WHERE lock_name = v_name AND claim_id = p_claim.claim_id AND expires_at > p_claim.waiting_since;
  END IF;

  WHILE NOT v_held LOOP
    SELECT * INTO v_waiter FROM holdfast_waiters WHERE lock_name = v_name ORDER BY place LIMIT 1;
    IF v_waiter.place IS NULL THEN
      -- A claim without a place comes after all that have one.
      EXIT WHEN NOT v_asks OR fencing_token IS NOT NULL;
      v_waiter := p_claim;
    ELSIF v_waiter.expires_at <= v_now THEN
      PERFORM holdfast_remove_dead(v_name, v_now);
      CONTINUE;
    ELSIF v_waiter.expires_at > v_future + v_waiter.lasts THEN
      UPDATE holdfast_waiters SET waiting_since = least(waiting_since, v_now), expires_at = v_now + lasts
      WHERE lock_name = v_name AND expires_at > v_future + lasts;
      CONTINUE;
    END IF;
    IF (v_waiter.mode = 'exclusive' AND v_leases > 0)
      OR (v_waiter.mode = 'shared' AND v_permits + v_waiter.permits > v_waiter.max_permits)
    THEN
      EXIT WHEN v_waiter.place IS NULL;
      -- Locked, so that it cannot leave before this transaction ends: waiters behind it that fit would then not be
      -- admitted.
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
    v_raised := holdfast_raise_tokens();
    v_row.fencing_token := nextval('holdfast_tokens');
    v_row.holder_id := v_waiter.holder_id;
    IF v_asks AND v_waiter.claim_id = p_claim.claim_id THEN
      v_waiter.lasts := p_claim.time_to_live;
      v_waiter.metadata := p_claim.metadata;
      fencing_token := v_row.fencing_token;
      acquired_at := v_now;
    ELSE
      v_waiter.lasts := least(v_waiter.time_to_live,
        make_interval(secs => extract(epoch FROM v_waiter.expires_at - v_now)));
      events := events || jsonb_build_array(v_waiter.channel, v_waiter.claim_id, v_row.fencing_token::text,
        (extract(epoch FROM v_now) * 1000)::text, (extract(epoch FROM v_waiter.lasts) * 1000)::text);
      -- The waiter relies on this grant, without a call of its own that would wait for the disk. It may be crash-safe
      -- although this call is relaxed.
      IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM holdfast_set_durability(false);
      END IF;
    END IF;
    IF v_waiter.mode = 'exclusive' THEN
      v_held := true;
      v_row.claim_id := v_waiter.claim_id;
      v_row.metadata := v_waiter.metadata;
      v_row.lasts := v_waiter.lasts;
    ELSE
      IF v_leases = 0 AND p_row.mode = 'exclusive' THEN
        -- Left over where distributed_locks alone was emptied.
        DELETE FROM holdfast_leases WHERE lock_name = v_name;
      END IF;
      v_leases := v_leases + 1;
      v_permits := v_permits + v_waiter.permits;
      INSERT INTO holdfast_leases VALUES (
        v_name, v_waiter.claim_id, v_waiter.holder_id, v_waiter.max_permits, v_waiter.permits,
        v_row.fencing_token, v_now, v_now + v_waiter.lasts, v_waiter.metadata, v_waiter.lasts);
    END IF;
  END LOOP;

  IF v_asks AND fencing_token IS NULL AND p_claim.lasts > interval '0' THEN
    -- The claim keeps its place. A place that it did not renew in time is lost, and it goes to the end.
    INSERT INTO holdfast_waiters AS w VALUES (
      v_name, nextval('holdfast_places'), p_claim.claim_id, p_claim.holder_id, p_claim.mode, p_claim.max_permits,
      p_claim.permits, p_claim.time_to_live, p_claim.metadata, p_claim.channel, v_now, v_now + p_claim.lasts,
      p_claim.lasts)
    ON CONFLICT (lock_name, claim_id) DO UPDATE SET expires_at = excluded.expires_at, lasts = excluded.lasts,
      waiting_since = least(w.waiting_since, v_now), channel = excluded.channel,
      place = CASE WHEN w.expires_at > p_claim.waiting_since THEN w.place ELSE excluded.place END
    RETURNING w.place INTO place;
    v_queued := true;
  END IF;

  -- The row shows the outcome, to plain clients as well. It is written, not only locked, whenever leases changed: a
  -- transaction with an older snapshot (REPEATABLE READ) then fails instead of deciding on outdated rows.
  -- A waiter that joined after such a snapshot has not written the row if it was already contended. So it stays so.
  v_contended := v_leases > 0 OR v_queued
    OR (p_row.contended AND current_setting('transaction_isolation') <> 'read committed');
  IF v_held AND v_changed THEN
    UPDATE distributed_locks SET mode = 'exclusive', claim_id = v_row.claim_id, holder_id = v_row.holder_id,
      metadata = v_row.metadata, fencing_token = v_row.fencing_token, acquired_at = v_now,
      expires_at = v_now + v_row.lasts,
      lasts = v_row.lasts, contended = v_contended OR EXISTS (SELECT FROM holdfast_waiters w WHERE w.lock_name = v_name)
    WHERE lock_name = v_name;
  ELSIF v_held THEN
    IF NOT v_contended THEN
      v_contended := EXISTS (SELECT FROM holdfast_waiters WHERE lock_name = v_name);
    END IF;
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

-- The front of a queue: of its first hundred places, those that have not expired.
-- Inputs:  p_lock_name; p_before, a place: only places before it (NULL: all)
-- Outputs: places; gone, for each place: when the first place up to it expires
-- The function scans the index in order and stops. So it never reads and sorts the entire queue, even if the planner's
-- statistics are wrong.
CREATE OR REPLACE FUNCTION holdfast_front(
  p_lock_name TEXT, p_before BIGINT, OUT places BIGINT[], OUT gone TIMESTAMPTZ[]
)
LANGUAGE plpgsql SET enable_sort = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
  SELECT array_agg(place ORDER BY place), array_agg(gone ORDER BY place) INTO places, gone FROM (
    SELECT place, min(expires_at) OVER (ORDER BY place) AS gone FROM (
      SELECT place, expires_at FROM holdfast_waiters
      WHERE lock_name = p_lock_name AND place < coalesce(p_before, 9223372036854775807) ORDER BY place LIMIT 100
    ) AS first WHERE expires_at > clock_timestamp()
  ) AS living;
END
$$;

-- Removes expired places from the front of a queue.
-- Inputs: p_lock_name, p_now
CREATE OR REPLACE FUNCTION holdfast_remove_dead(p_lock_name TEXT, p_now TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql SET enable_sort = off SET enable_bitmapscan = off AS $$
BEGIN
  DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
    SELECT at FROM (
      SELECT ctid AS at, expires_at FROM holdfast_waiters WHERE lock_name = p_lock_name ORDER BY place LIMIT 100
    ) AS front
    WHERE expires_at <= p_now)) AND expires_at <= p_now;
END
$$;

-- The event for the first live waiter of a queue, when it has to wait on but should ask again at another time than
-- before: a lease ends sooner, or waiters before it have left. Only the first one would ask.
-- Inputs:  p_lock_name; p_left, a place that was left: no event unless it was before the first waiter's (NULL: any)
-- Outputs: one event, or NULL
CREATE OR REPLACE FUNCTION holdfast_first(p_lock_name TEXT, p_left BIGINT) RETURNS JSONB[]
LANGUAGE plpgsql AS $$
DECLARE
  v_first CONSTANT BIGINT := (SELECT places[1] FROM holdfast_front(p_lock_name, NULL));
BEGIN
  IF p_left > v_first THEN
    RETURN NULL;
  END IF;
  RETURN (
    SELECT array_agg(jsonb_build_array(channel, claim_id, '', '', '')) FROM holdfast_waiters
    WHERE lock_name = p_lock_name AND place = v_first);
END
$$;

-- Whether the server's notification queue has room. A client of any application that listens and leaves a transaction
-- open fills that queue for the entire server. Then every transaction that notifies fails, and a lock could no longer
-- be released. So nothing is sent while the queue is half full. A notification is only a hint: waiters also poll.
CREATE OR REPLACE FUNCTION holdfast_may_notify() RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
BEGIN
  RETURN pg_notification_queue_usage() < 0.5;
END
$$;

-- Sends the events of one call. Each process gets the events of its own waiters. A payload holds at most three events,
-- so it stays below 8,000 bytes.
-- Inputs: events [channel of the waiter, claim_id, fencing_token, acquired_at in ms, duration in ms]: the claim has
--         this lease. With '' for the last three: the claim should ask again
-- Every role that can connect can send a notification. So each event gets a proof, from a key that a right to all
-- tables does not show. If this role cannot read it, nothing is sent. Waiters also poll.
CREATE OR REPLACE FUNCTION holdfast_tell(p_events JSONB[]) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
  v_key TEXT;
BEGIN
  IF holdfast_may_notify() THEN
    v_key := holdfast_key();
  END IF;
  IF v_key IS NULL THEN
    RETURN;
  ELSIF cardinality(p_events) = 1 THEN
    PERFORM pg_notify(
      split_part(p_events[1] ->> 0, ':', 1), jsonb_build_array(holdfast_proved(p_events[1], v_key))::text);
  ELSE
    PERFORM pg_notify(channel, payload) FROM (
      SELECT channel, jsonb_agg(event)::text AS payload FROM (
        SELECT split_part(each ->> 0, ':', 1) AS channel, holdfast_proved(each, v_key) AS event,
          (row_number() OVER (PARTITION BY split_part(each ->> 0, ':', 1) ORDER BY ord)) / 3 AS part
        FROM unnest(p_events) WITH ORDINALITY AS events (each, ord)
      ) AS parts GROUP BY channel, part
    ) AS messages;
  END IF;
END
$$;

-- An event as it is sent: without the channel, and with a proof at its end. The proof is the SHA-256, in hex, of the
-- key, the random text behind the channel, the token, the two times, the claim id and the key, with blanks in between.
CREATE OR REPLACE FUNCTION holdfast_proved(p_event JSONB, p_key TEXT) RETURNS JSONB
LANGUAGE plpgsql AS $$
BEGIN
  RETURN p_event - 0 || to_jsonb(encode(sha256(convert_to(concat_ws(' ', p_key, split_part(p_event ->> 0, ':', 2),
    p_event ->> 2, p_event ->> 3, p_event ->> 4, p_event ->> 1, p_key), 'UTF8')), 'hex'));
END
$$;

-- Removes a bounded number of rows that ended some time ago. It is the last step of a call. It skips locked rows, and
-- nothing waits after it, so it takes part in no deadlock. It scans the index in order and stops. So it reads no more
-- rows than it may remove, even if the planner's statistics are wrong.
-- While any transaction of the server stays open, deleted rows stay in the index, and a sweep from its beginning would
-- read all of them every time. So each session remembers how far it has swept and continues there. Every five minutes
-- it starts from the beginning, for rows that were locked, or that came later with an earlier end.
-- Inputs:  p_most, the maximum number of rows
-- Outputs: events
CREATE OR REPLACE FUNCTION holdfast_sweep(p_most INTEGER) RETURNS JSONB[]
LANGUAGE plpgsql SET enable_sort = off SET enable_bitmapscan = off AS $$
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
    v_events := v_events || (holdfast_admit(v_row, false, NULL)).events;
  END LOOP;
  -- Left over where distributed_locks alone was emptied.
  DELETE FROM holdfast_leases WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast_leases
    WHERE expires_at >= v_from - interval '1 minute' AND expires_at < v_before - interval '1 minute'
    ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED));
  DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast_waiters
    WHERE expires_at >= v_from - interval '1 minute' AND expires_at < v_before - interval '1 minute'
    ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED));
  RETURN v_events;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (3) ON CONFLICT DO NOTHING;
