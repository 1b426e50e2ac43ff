-- Migration 4: what the driver calls. Each takes a whole list, as arrays of one length, and is one statement, one round trip, one commit.
--
-- Every function takes the locks of its names' rows in one order, byte by byte (COLLATE "C"), before it does anything else: lists that overlap in
-- opposite orders wait for each other and never deadlock. A row that somebody's open transaction keeps locked is waited for four seconds; then the call
-- fails as a whole (55P03), and nothing of it is done.
-- Plans go by the indexes alone: to the planner a table of locks looks empty, and reading all of it looks cheap, while what was there a second ago still lies about.
-- A call that changed leases commits to the disk, whatever the role's setting, unless p_relaxed says otherwise (synchronous_commit = off, for this
-- transaction only). A claim that was only refused, or took a place in the queue, does not wait for the disk: if a crash undoes that, the waiter asks again.
-- In a transaction that has written something before, which is somebody else's, that is left as it is.

-- holdfast_acquire
-- Inputs:  for each claim: lock name, claim id, holder id, shared or exclusive, limit (NULL: none), permits, time to live in ms, how long it waits
--          without being heard of in ms (0: not at all), metadata as JSON text (NULL: none); for all: the channel where this process listens
-- Outputs: granted_claims, granted_tokens, granted_at  one element for each lease, in any order; granted_at in ms
--          refusals  {claim id: {holder, ahead, askAgainMs, answeredAtMs}}
-- A claim id stands for one acquisition: asking again with it gives the same lease, its time started anew.
CREATE OR REPLACE FUNCTION holdfast_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN,
  OUT granted_claims TEXT[], OUT granted_tokens BIGINT[], OUT granted_at FLOAT8[], OUT refusals JSONB
)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_late    CONSTANT INTERVAL := '10 ms';
  v_alone   CONSTANT BOOLEAN := pg_current_xact_id_if_assigned() IS NULL;
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_stale   TEXT[];
  v_rest    INTEGER[];    -- places in the list of the claims that the usual case has not granted
  v_ord     INTEGER;
  v_claim   holdfast_waiters;
  v_got     RECORD;
  v_refused TEXT[];
  v_reasons JSONB[];
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  PERFORM holdfast_raise_tokens();

  -- The usual case: a free name, or one whose lease has run out, that nobody else wants. Afterwards each name of the list has a row, and that row
  -- is inserted or locked by this transaction, granted or not. A name that begins with a shared claim gets a row that is free.
  --
  -- A token drawn for a row that is inserted may be older than that of somebody who took and gave back the name between the draw and the insertion.
  -- If nobody has drawn since, that cannot be. If anybody has, for whichever name, it is drawn once more, now that the row is ours. What had to wait for
  -- somebody's row is late, and counts from now: its time was read before. Else the time stays, because an update that changes it touches the indexes.
  IF v_count = 1 THEN
    INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended)
    SELECT p_names[1], p_holders[1], t, CASE WHEN p_shared[1] THEN t ELSE t + p_ttls[1] * interval '1 ms' END, p_metadata[1]::jsonb,
      CASE WHEN NOT p_shared[1] THEN p_claims[1] END, nextval('holdfast_tokens'), p_shared[1]
    FROM clock_timestamp() AS t
    ON CONFLICT (lock_name) DO UPDATE SET holder_id = excluded.holder_id, acquired_at = clock_timestamp(),
      expires_at = clock_timestamp() + (excluded.expires_at - excluded.acquired_at), metadata = excluded.metadata,
      claim_id = excluded.claim_id, mode = 'exclusive', fencing_token = nextval('holdfast_tokens')
    WHERE excluded.claim_id IS NOT NULL AND d.expires_at <= clock_timestamp() AND NOT d.contended
    RETURNING d.fencing_token, d.acquired_at, d.claim_id,
      d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass)
        OR d.acquired_at < clock_timestamp() - v_late AS stale INTO v_got;
    IF v_got.claim_id IS NOT NULL THEN
      IF v_got.stale THEN
        UPDATE distributed_locks SET fencing_token = nextval('holdfast_tokens'),
          acquired_at = CASE WHEN acquired_at < t - v_late THEN t ELSE acquired_at END,
          expires_at = CASE WHEN acquired_at < t - v_late THEN t + (expires_at - acquired_at) ELSE expires_at END
        FROM clock_timestamp() AS t WHERE lock_name = p_names[1]
        RETURNING fencing_token, acquired_at INTO v_got.fencing_token, v_got.acquired_at;
      END IF;
      -- Its place is left if somebody emptied distributed_locks alone.
      IF p_waits[1] > 0 THEN
        DELETE FROM holdfast_waiters WHERE lock_name = p_names[1] AND claim_id = p_claims[1];
      END IF;
      granted_claims := p_claims;
      granted_tokens := ARRAY[v_got.fencing_token];
      granted_at := ARRAY[extract(epoch FROM v_got.acquired_at) * 1000];
    ELSE
      v_rest := '{1}';
    END IF;
  ELSE
    WITH first AS (
      SELECT DISTINCT ON (lock_name COLLATE "C") *
      FROM unnest(p_names, p_claims, p_holders, p_shared, p_ttls, p_metadata)
        WITH ORDINALITY AS c (lock_name, claim_id, holder_id, shared, ttl, metadata, ord)
      ORDER BY lock_name COLLATE "C", ord
    ), granted AS (
      INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended)
      -- Each row has the time and the token of its own turn: a list may have to wait for any of them.
      SELECT lock_name, holder_id, clock_timestamp(), clock_timestamp() + CASE WHEN shared THEN 0 ELSE ttl END * interval '1 ms',
        metadata::jsonb, CASE WHEN NOT shared THEN claim_id END, nextval('holdfast_tokens'), shared
      FROM first
      ORDER BY lock_name COLLATE "C"
      ON CONFLICT (lock_name) DO UPDATE SET holder_id = excluded.holder_id, acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + (excluded.expires_at - excluded.acquired_at), metadata = excluded.metadata,
        claim_id = excluded.claim_id, mode = 'exclusive', fencing_token = nextval('holdfast_tokens')
      WHERE excluded.claim_id IS NOT NULL AND d.expires_at <= clock_timestamp() AND NOT d.contended
      RETURNING d.lock_name, d.claim_id, d.fencing_token, d.acquired_at,
        d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass) OR d.acquired_at < clock_timestamp() - v_late AS stale
    )
    SELECT array_agg(claim_id) FILTER (WHERE NOT stale), array_agg(fencing_token) FILTER (WHERE NOT stale),
      array_agg(extract(epoch FROM acquired_at) * 1000) FILTER (WHERE NOT stale),
      array_agg(lock_name) FILTER (WHERE stale)
    INTO granted_claims, granted_tokens, granted_at, v_stale
    FROM granted WHERE claim_id IS NOT NULL;
    IF v_stale IS NOT NULL THEN
      WITH drawn AS (
        UPDATE distributed_locks SET fencing_token = nextval('holdfast_tokens'),
          acquired_at = CASE WHEN acquired_at < t - v_late THEN t ELSE acquired_at END,
          expires_at = CASE WHEN acquired_at < t - v_late THEN t + (expires_at - acquired_at) ELSE expires_at END
        FROM clock_timestamp() AS t WHERE lock_name = ANY (v_stale)
        RETURNING claim_id, fencing_token, acquired_at
      )
      SELECT granted_claims || array_agg(claim_id), granted_tokens || array_agg(fencing_token),
        granted_at || array_agg((extract(epoch FROM acquired_at) * 1000)::float8)
      INTO granted_claims, granted_tokens, granted_at FROM drawn;
    END IF;
    IF granted_claims IS NOT NULL AND 0 < ANY (p_waits) THEN
      -- Looked for one by one: the planner would rather read every waiter, and the whole list for each.
      DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
        SELECT place.ctid FROM unnest(p_names, p_claims, p_waits) AS c (lock_name, claim_id, wait), LATERAL (
          SELECT w.ctid FROM holdfast_waiters w WHERE w.lock_name = c.lock_name AND w.claim_id = c.claim_id OFFSET 0
        ) AS place WHERE c.wait > 0 AND c.claim_id IN (SELECT unnest(granted_claims))));
    END IF;
  END IF;

  IF v_rest IS NULL AND cardinality(granted_claims) IS DISTINCT FROM v_count THEN
    SELECT array_agg(ord ORDER BY ord) INTO v_rest FROM unnest(p_claims) WITH ORDINALITY AS c (claim_id, ord)
    WHERE claim_id NOT IN (SELECT unnest(coalesce(granted_claims, '{}')));
  END IF;
  -- The rest, in the order of the list.
  FOREACH v_ord IN ARRAY coalesce(v_rest, '{}') LOOP
    v_claim.lock_name := p_names[v_ord];
    v_claim.claim_id := p_claims[v_ord];
    v_claim.holder_id := p_holders[v_ord];
    v_claim.mode := CASE WHEN p_shared[v_ord] THEN 'shared' ELSE 'exclusive' END;
    v_claim.max_permits := p_limits[v_ord];
    v_claim.permits := p_permits[v_ord];
    v_claim.time_to_live := p_ttls[v_ord] * interval '1 ms';
    v_claim.metadata := p_metadata[v_ord]::jsonb;
    v_claim.channel := p_channel;
    v_got := holdfast_ask(v_claim, p_waits[v_ord] * interval '1 ms');
    v_events := v_events || v_got.events;
    IF v_got.fencing_token IS NOT NULL THEN
      granted_claims := granted_claims || v_claim.claim_id;
      granted_tokens := granted_tokens || v_got.fencing_token;
      granted_at := granted_at || (extract(epoch FROM v_got.acquired_at) * 1000)::float8;
    ELSE
      v_refused := v_refused || v_claim.claim_id;
      v_reasons := v_reasons || v_got.refusal;
    END IF;
  END LOOP;
  IF cardinality(v_refused) = 1 THEN
    refusals := jsonb_build_object(v_refused[1], v_reasons[1]);
  ELSIF v_refused IS NOT NULL THEN
    -- At the end, because an object that grows is copied with every step.
    refusals := (SELECT jsonb_object_agg(claim_id, reason) FROM unnest(v_refused, v_reasons) AS r (claim_id, reason));
  END IF;

  -- One call in eight sweeps, and then eight times as much: on average twice what calls leave behind at the most.
  IF random() < 0.125 THEN
    v_events := v_events || holdfast_sweep(16 * v_count + 16);
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  ELSIF granted_claims IS NULL AND v_alone THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
END
$$;

-- One claim on a name whose row is locked by this transaction.
-- Outputs: fencing_token and acquired_at of its lease, or refusal {holder, ahead, askAgainMs, answeredAtMs}; events
-- answeredAtMs is read under the row's lock, as acquired_at is: a grant that is handed over later than this refusal has a later time, and needs no question.
CREATE OR REPLACE FUNCTION holdfast_ask(
  p_claim holdfast_waiters, p_wait INTERVAL,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT refusal JSONB, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_row   distributed_locks;
  v_held  BOOLEAN;    -- exclusively, by another
  v_got   RECORD;
  v_found JSONB;
  v_place BIGINT;
  v_ahead BIGINT;
  v_next  TIMESTAMPTZ;
BEGIN
  SELECT * INTO STRICT v_row FROM distributed_locks WHERE lock_name = p_claim.lock_name;
  -- Already yours: a reply was lost, or the lock was handed over.
  IF v_row.mode = 'exclusive' AND v_row.claim_id = p_claim.claim_id AND v_row.expires_at > v_now THEN
    UPDATE distributed_locks SET expires_at = v_now + p_claim.time_to_live WHERE lock_name = p_claim.lock_name;
    fencing_token := v_row.fencing_token;
    acquired_at := v_row.acquired_at;
    RETURN;
  ELSIF v_row.mode = 'shared' THEN
    UPDATE holdfast_leases SET expires_at = v_now + p_claim.time_to_live
    WHERE lock_name = p_claim.lock_name AND claim_id = p_claim.claim_id AND expires_at > v_now
    RETURNING fencing_token, acquired_at INTO fencing_token, acquired_at;
    IF FOUND THEN
      UPDATE distributed_locks SET expires_at =
        (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = p_claim.lock_name)
      WHERE lock_name = p_claim.lock_name;
      RETURN;
    END IF;
  END IF;

  -- Held by another who will hold it on, and it does not want to stand in the queue: nothing to decide.
  v_held := v_row.mode = 'exclusive' AND v_row.expires_at > v_now;
  IF NOT v_held OR p_wait > interval '0' THEN
    v_got := holdfast_admit(v_row, false, p_claim, p_wait);
    fencing_token := v_got.fencing_token;
    acquired_at := v_got.acquired_at;
    events := v_got.events;
    v_place := v_got.place;
    IF fencing_token IS NOT NULL THEN
      RETURN;
    END IF;
    IF NOT v_held THEN
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_claim.lock_name;
    END IF;
  END IF;

  refusal := jsonb_build_object('answeredAtMs', extract(epoch FROM clock_timestamp()) * 1000);
  IF v_row.mode = 'shared' THEN
    SELECT holdfast_lease_json(l) INTO v_found FROM holdfast_leases l
    WHERE l.lock_name = p_claim.lock_name ORDER BY l.fencing_token LIMIT 1;
  ELSIF v_row.expires_at > v_now THEN
    v_found := holdfast_lease_json(v_row);
  END IF;
  IF v_found IS NOT NULL THEN
    refusal := refusal || jsonb_build_object('holder', v_found);
  END IF;
  IF v_place IS NOT NULL THEN
    SELECT count(*), min(expires_at) INTO v_ahead, v_next FROM holdfast_waiters
    WHERE lock_name = p_claim.lock_name AND place < v_place AND expires_at > v_now;
    -- The first waits for a lease to run out; the others for somebody before them, who may be dead, to be gone.
    IF v_ahead = 0 AND v_row.mode = 'shared' THEN
      SELECT min(l.expires_at) INTO v_next FROM holdfast_leases l WHERE l.lock_name = p_claim.lock_name;
    ELSIF v_ahead = 0 THEN
      v_next := v_row.expires_at;
    END IF;
    refusal := refusal || jsonb_build_object('ahead', v_ahead,
      'askAgainMs', greatest(0, extract(epoch FROM v_next - clock_timestamp()) * 1000));
  END IF;
END
$$;

-- holdfast_renew
-- Inputs:  for each lease: lock name, claim id, fencing token, time to live from now in ms
-- Outputs: for each true, or false: it had ended, and is not re-created
CREATE OR REPLACE FUNCTION holdfast_renew(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN
) RETURNS BOOLEAN[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_answers BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_names)]);
  v_locked  TEXT[] := p_names;
  v_sooner  BOOLEAN;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  IF v_count > 1 THEN
    v_locked := holdfast_lock_rows(p_names);
  END IF;
  -- One by one: joined with the list, a table that looks empty to the planner is read as a whole, with the whole list for each row.
  FOR v_ord IN 1 .. v_count LOOP
    UPDATE distributed_locks AS d SET expires_at = clock_timestamp() + p_ttls[v_ord] * interval '1 ms'
    FROM distributed_locks AS before
    WHERE d.lock_name = p_names[v_ord] AND d.claim_id = p_claims[v_ord] AND d.fencing_token = p_tokens[v_ord]
      AND d.mode = 'exclusive' AND d.expires_at > clock_timestamp() AND before.lock_name = d.lock_name
    RETURNING d.contended AND d.expires_at < before.expires_at INTO v_sooner;
    v_answers[v_ord] := FOUND;
    IF v_sooner THEN
      -- Who waits for it to run out would come too late.
      v_events := v_events || holdfast_first(p_names[v_ord]);
    END IF;
    CONTINUE WHEN v_answers[v_ord] OR NOT p_names[v_ord] = ANY (v_locked);
    PERFORM FROM distributed_locks WHERE lock_name = p_names[v_ord] FOR UPDATE;
    UPDATE distributed_locks SET expires_at = clock_timestamp() + p_ttls[v_ord] * interval '1 ms'
    WHERE lock_name = p_names[v_ord] AND claim_id = p_claims[v_ord] AND fencing_token = p_tokens[v_ord]
      AND mode = 'exclusive' AND expires_at > clock_timestamp();
    IF NOT FOUND THEN
      UPDATE holdfast_leases SET expires_at = clock_timestamp() + p_ttls[v_ord] * interval '1 ms'
      WHERE lock_name = p_names[v_ord] AND claim_id = p_claims[v_ord] AND fencing_token = p_tokens[v_ord]
        AND expires_at > clock_timestamp()
        AND EXISTS (SELECT FROM distributed_locks d WHERE d.lock_name = p_names[v_ord] AND d.mode = 'shared');
      IF FOUND THEN
        UPDATE distributed_locks SET expires_at =
          (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = p_names[v_ord])
        WHERE lock_name = p_names[v_ord];
      END IF;
    END IF;
    v_answers[v_ord] := FOUND;
  END LOOP;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
  RETURN v_answers;
END
$$;

-- holdfast_release
-- Inputs:  for each lease: lock name, claim id, fencing token (NULL: whatever the claim has, a lease or a place in the queue)
-- Outputs: for each whether a lease that had not ended was ended by this call
CREATE OR REPLACE FUNCTION holdfast_release(p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_relaxed BOOLEAN) RETURNS BOOLEAN[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_answers BOOLEAN[] := array_fill(false, ARRAY[cardinality(p_names)]);
  v_got     RECORD;
  v_events  JSONB[];
  v_locked  TEXT[] := p_names;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  IF v_count > 1 THEN
    v_locked := holdfast_lock_rows(p_names);
  END IF;
  -- One by one, for the reason given in holdfast_renew.
  FOR v_ord IN 1 .. v_count LOOP
    DELETE FROM distributed_locks
    WHERE lock_name = p_names[v_ord] AND claim_id = p_claims[v_ord] AND (p_tokens[v_ord] IS NULL OR fencing_token = p_tokens[v_ord])
      AND mode = 'exclusive' AND NOT contended AND expires_at > clock_timestamp();
    v_answers[v_ord] := FOUND;
    CONTINUE WHEN FOUND OR NOT p_names[v_ord] = ANY (v_locked);
    v_got := holdfast_end(p_names[v_ord], p_claims[v_ord], p_tokens[v_ord]);
    v_answers[v_ord] := v_got.ended;
    v_events := v_events || v_got.events;
  END LOOP;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
  RETURN v_answers;
END
$$;

-- One lease or place in the queue ends, and whose turn it is then has the lock.
CREATE OR REPLACE FUNCTION holdfast_end(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, OUT ended BOOLEAN, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row   distributed_locks;
  v_free  BOOLEAN := false;
  v_stood BOOLEAN := false;
  v_got   RECORD;
BEGIN
  ended := false;
  SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE;
  IF v_row.mode = 'exclusive' THEN
    -- A plain client's row goes by the name that inspect shows for it.
    v_free := coalesce(v_row.claim_id, 'plain:' || v_row.holder_id) = p_claim_id
      AND (p_token IS NULL OR v_row.fencing_token = p_token);
    ended := v_free AND v_row.expires_at > clock_timestamp();
  ELSIF v_row.mode = 'shared' THEN
    DELETE FROM holdfast_leases
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND (p_token IS NULL OR fencing_token = p_token)
    RETURNING expires_at > clock_timestamp() INTO ended;
    v_free := FOUND;
    ended := coalesce(ended, false);
  END IF;
  -- Who holds it has no place in the queue.
  IF NOT ended THEN
    DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id;
    v_stood := FOUND;
  END IF;
  IF v_free OR (v_stood AND v_row.lock_name IS NOT NULL) THEN
    v_got := holdfast_admit(v_row, v_free AND v_row.mode = 'exclusive', NULL, NULL);
    events := v_got.events;
    IF v_stood AND events IS NULL THEN
      events := holdfast_first(p_lock_name);
    END IF;
  END IF;
END
$$;

-- Outputs: the names that have a row, which is locked now. A name without one has no lease and no queue, and must not be waited for any more: a row that
-- somebody makes from now on would be locked out of order.
CREATE OR REPLACE FUNCTION holdfast_lock_rows(p_names TEXT[]) RETURNS TEXT[]
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT coalesce(array_agg(lock_name), '{}') FROM (
    SELECT lock_name FROM distributed_locks WHERE lock_name = ANY (p_names) ORDER BY lock_name COLLATE "C" FOR UPDATE
  ) AS locked);
END
$$;

CREATE OR REPLACE FUNCTION holdfast_set_durability(p_relaxed BOOLEAN) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
  IF p_relaxed THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (4) ON CONFLICT DO NOTHING;
