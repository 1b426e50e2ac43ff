-- Migration 4: leases. holdfast_acquire, holdfast_renew and holdfast_release each take a list, as arrays of one length.
-- The driver calls them through the procedures of 0011-calls.sql.
--
-- A row that another transaction keeps locked costs only its own entry. A list of one is patient: it waits for its row,
-- for p_patience ms or for the function's own lock_timeout, and then fails (55P03). A longer list never waits for an
-- existing row. It skips locked rows, answers "not known" for them, and does the rest. It waits only for a free name
-- that another transaction is taking at this moment. Names are taken in one order, byte by byte (COLLATE "C"), so that
-- overlapping lists never deadlock.
-- Plans use the indexes only. To the planner a table of locks looks empty and a sequential scan cheap, but the rows of
-- a second ago are still on the disk. Lists are joined by LATERAL for the same reason: the list comes first, and the
-- table is looked up for each entry.
-- Which calls wait for the disk: see 0016-durability.sql.
--
-- Deliberate copies. A list of one has statements of its own, beside those for longer lists. So do decisions without a
-- lock: holdfast_line_up for a list, holdfast_ask for one claim, with the first lines of holdfast_is_refused copied
-- into it. With them, acquiring, renewing and releasing one name takes the server 0.4 ms instead of 1.1 ms.
-- test/drivers/postgres/equal-paths.test.ts keeps them equal: it sends the same random calls in both forms and compares
-- every answer.

-- holdfast_acquire
-- Inputs:  for each claim: lock name, claim id, holder id, shared or exclusive, limit (NULL: none), permits, time to
--          live in ms, how long its place in the queue lasts without being renewed in ms (0: it does not wait),
--          metadata as JSON text (NULL: none);
--          for all: the channel on which this process listens, and behind a colon a random text that no other call
--          has; relaxed; p_patience, see above;
--          p_asked, when they were asked for, if that was in an earlier call (NULL: now)
-- Outputs: granted_claims, granted_tokens, granted_at  one element for each lease, in any order; granted_at in ms
--          refused_claims, refused_ahead, refused_until  one element for each refusal, in any order: the number of
--            waiters before it, at most 100; the ms after which asking again may help. Both NULL: it does not wait
--          refused_at  the clock in ms before anything was decided: a lease that was handed over later is newer than
--            the refusal
--          holders     {lock name: its holder}, for the refusals
--          not_known   claims whose rows other transactions keep locked
-- A claim id identifies one acquisition: asking again with it returns the same lease, renewed for its time to live.
CREATE OR REPLACE FUNCTION holdfast_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN,
  p_patience FLOAT8 DEFAULT NULL,
  p_asked TIMESTAMPTZ DEFAULT NULL,
  OUT granted_claims TEXT[], OUT granted_tokens BIGINT[], OUT granted_at FLOAT8[],
  OUT refused_claims TEXT[], OUT refused_ahead INTEGER[], OUT refused_until FLOAT8[], OUT refused_at FLOAT8,
  OUT holders JSONB,
  OUT not_known TEXT[]
)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_void   TEXT;    -- takes results that are not needed: an assignment costs less than a query
  v_late   CONSTANT INTERVAL := '10 ms';
  v_alone  CONSTANT BOOLEAN := pg_current_xact_id_if_assigned() IS NULL;
  v_count  CONSTANT INTEGER := cardinality(p_names);
  v_asked  CONSTANT TIMESTAMPTZ := coalesce(p_asked, clock_timestamp());
  v_stale  TEXT[];
  v_each   RECORD;
  v_row    distributed_locks;
  v_claim  holdfast_waiters;
  v_got    RECORD;
  v_locked TEXT[];
  v_named  TEXT[];
  v_seen   JSONB[];
  v_events JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  IF p_patience IS NOT NULL THEN
    v_void := set_config('lock_timeout', p_patience::integer::text, true);
  END IF;
  refused_at := extract(epoch FROM clock_timestamp()) * 1000;

  -- The common case: free names. A name whose first claim is shared gets a row that is free, and is decided on below.
  --
  -- Another client may take and release the name between the draw of a token and the insertion of its row. Then the
  -- token drawn here is the older one. If no token was drawn since, for any name, that cannot have happened. Otherwise
  -- it is drawn again, now that the row is ours. If the insertion had to wait for another client's row, the time that
  -- was read before is too old, and the lease counts from now. Otherwise its times stay, because an update that changes
  -- them touches the indexes.
  IF v_count = 1 THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_names[1];
  END IF;
  IF v_row.lock_name IS NULL THEN
    v_void := holdfast_raise_tokens();
  END IF;
  IF v_count = 1 AND v_row.lock_name IS NULL THEN
    INSERT INTO distributed_locks AS d (
      lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended, lasts)
    SELECT p_names[1], p_holders[1], t, CASE WHEN p_shared[1] THEN t ELSE t + p_ttls[1] * interval '1 ms' END,
      p_metadata[1]::jsonb, CASE WHEN NOT p_shared[1] THEN p_claims[1] END, nextval('holdfast_tokens'), p_shared[1],
      p_ttls[1] * interval '1 ms'
    FROM clock_timestamp() AS t
    ON CONFLICT (lock_name) DO NOTHING
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
      -- It may have a place left over where distributed_locks alone was emptied.
      IF p_waits[1] > 0 THEN
        DELETE FROM holdfast_waiters WHERE lock_name = p_names[1] AND claim_id = p_claims[1];
      END IF;
      granted_claims := p_claims;
      granted_tokens := ARRAY[v_got.fencing_token];
      granted_at := ARRAY[extract(epoch FROM v_got.acquired_at) * 1000];
    END IF;
  ELSIF v_count > 1 THEN
    WITH first AS (
      SELECT DISTINCT ON (lock_name COLLATE "C") *
      FROM unnest(p_names, p_claims, p_holders, p_shared, p_ttls, p_metadata)
        WITH ORDINALITY AS c (lock_name, claim_id, holder_id, shared, ttl, metadata, ord)
      ORDER BY lock_name COLLATE "C", ord
    ), granted AS (
      INSERT INTO distributed_locks AS d (
        lock_name, holder_id, acquired_at, expires_at, metadata, claim_id, fencing_token, contended, lasts)
      -- The time and the token are read for each row: a list may have to wait for any of them.
      SELECT lock_name, holder_id, clock_timestamp(),
        clock_timestamp() + CASE WHEN shared THEN 0 ELSE ttl END * interval '1 ms', metadata::jsonb,
        CASE WHEN NOT shared THEN claim_id END, nextval('holdfast_tokens'), shared, ttl * interval '1 ms'
      FROM first
      WHERE (SELECT true FROM distributed_locks e WHERE e.lock_name = first.lock_name) IS NULL
      ORDER BY lock_name COLLATE "C"
      ON CONFLICT (lock_name) DO NOTHING
      RETURNING d.lock_name, d.claim_id, d.fencing_token, d.acquired_at,
        d.fencing_token <> pg_sequence_last_value('holdfast_tokens'::regclass)
          OR d.acquired_at < clock_timestamp() - v_late AS stale
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
      DELETE FROM holdfast_waiters WHERE ctid = ANY (ARRAY(
        SELECT place.ctid FROM unnest(p_names, p_claims, p_waits) AS c (lock_name, claim_id, wait), LATERAL (
          SELECT w.ctid FROM holdfast_waiters w WHERE w.lock_name = c.lock_name AND w.claim_id = c.claim_id OFFSET 0
        ) AS place WHERE c.wait > 0 AND c.claim_id IN (SELECT unnest(granted_claims))));
    END IF;
  END IF;

  IF v_count = 1 AND granted_claims IS NULL THEN
    v_claim.lock_name := p_names[1];
    v_claim.claim_id := p_claims[1];
    v_claim.holder_id := p_holders[1];
    v_claim.mode := CASE WHEN p_shared[1] THEN 'shared' ELSE 'exclusive' END;
    v_claim.max_permits := p_limits[1];
    v_claim.permits := p_permits[1];
    v_claim.time_to_live := p_ttls[1] * interval '1 ms';
    v_claim.metadata := p_metadata[1]::jsonb;
    v_claim.channel := p_channel;
    v_claim.waiting_since := v_asked;
    v_claim.lasts := p_waits[1] * interval '1 ms';
    IF v_row.lock_name IS NULL THEN
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_names[1];
    END IF;
    v_got := holdfast_ask(v_row, v_claim, true);
    v_events := v_got.events;
    IF v_got.fencing_token IS NOT NULL THEN
      granted_claims := p_claims;
      granted_tokens := ARRAY[v_got.fencing_token];
      granted_at := ARRAY[extract(epoch FROM v_got.acquired_at) * 1000];
    ELSE
      refused_claims := p_claims;
      refused_ahead := ARRAY[v_got.ahead];
      refused_until := ARRAY[v_got.until];
      holders := CASE WHEN v_got.holder IS NOT NULL THEN jsonb_build_object(p_names[1], v_got.holder) END;
    END IF;
  ELSIF cardinality(granted_claims) IS DISTINCT FROM v_count THEN
    SELECT * INTO refused_claims, refused_ahead, refused_until, holders
    FROM holdfast_line_up(p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata,
      p_channel, v_asked, granted_claims);
    -- The rest, in the order of the list.
    FOR v_each IN
      SELECT * FROM unnest(p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata)
        WITH ORDINALITY AS c (lock_name, claim_id, holder_id, shared, max_permits, permits, ttl, wait, metadata, ord)
      WHERE claim_id NOT IN (SELECT unnest(granted_claims || refused_claims)) ORDER BY ord
    LOOP
      v_claim.lock_name := v_each.lock_name;
      v_claim.claim_id := v_each.claim_id;
      v_claim.holder_id := v_each.holder_id;
      v_claim.mode := CASE WHEN v_each.shared THEN 'shared' ELSE 'exclusive' END;
      v_claim.max_permits := v_each.max_permits;
      v_claim.permits := v_each.permits;
      v_claim.time_to_live := v_each.ttl * interval '1 ms';
      v_claim.metadata := v_each.metadata::jsonb;
      v_claim.channel := p_channel;
      v_claim.waiting_since := v_asked;
      v_claim.lasts := v_each.wait * interval '1 ms';
      -- A claim on the same name must not overtake one that is not known.
      IF v_each.lock_name = ANY (v_locked) THEN
        not_known := not_known || v_claim.claim_id;
        CONTINUE;
      END IF;
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = v_each.lock_name;
      v_got := holdfast_ask(v_row, v_claim, false);
      v_events := v_events || v_got.events;
      IF v_got.not_known THEN
        not_known := not_known || v_claim.claim_id;
        v_locked := v_locked || v_each.lock_name;
      ELSIF v_got.fencing_token IS NOT NULL THEN
        granted_claims := granted_claims || v_claim.claim_id;
        granted_tokens := granted_tokens || v_got.fencing_token;
        granted_at := granted_at || (extract(epoch FROM v_got.acquired_at) * 1000)::float8;
      ELSE
        refused_claims := refused_claims || v_claim.claim_id;
        refused_ahead := refused_ahead || v_got.ahead;
        refused_until := refused_until || v_got.until;
        v_named := v_named || v_claim.lock_name::text;
        v_seen := v_seen || v_got.holder;
      END IF;
    END LOOP;
    IF v_named IS NOT NULL THEN
      -- Built at the end, because an object that grows is copied at every step.
      holders := coalesce(holders, '{}') || coalesce(
        (SELECT jsonb_object_agg(name, holder) FROM unnest(v_named, v_seen) AS h (name, holder)
          WHERE holder IS NOT NULL), '{}');
    END IF;
  END IF;

  -- One call in eight sweeps, eight times as many rows: on average twice the most that calls can leave behind. A call
  -- that others follow in the same transaction does not sweep: they would wait for rows while the swept ones stay
  -- locked.
  IF p_asked IS NULL AND random() < 0.125 THEN
    v_events := v_events || holdfast_sweep(16 * v_count + 16);
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  ELSIF granted_claims IS NULL AND v_alone THEN
    v_void := holdfast_lower_durability();
  END IF;
END
$$;

-- Decides the claims of a list on names that others hold exclusively, all at once: they keep their places in the
-- queues, join them, or are refused. Claims that cannot be decided this way are left out.
-- Inputs:  as holdfast_acquire; p_asked, when they were asked for; p_done, the claims that are already decided
-- Outputs: as holdfast_acquire
CREATE OR REPLACE FUNCTION holdfast_line_up(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_asked TIMESTAMPTZ, p_done TEXT[],
  OUT refused_claims TEXT[], OUT refused_ahead INTEGER[], OUT refused_until FLOAT8[], OUT holders JSONB
)
-- Here lists are joined with lists, never with tables.
LANGUAGE plpgsql SET enable_hashjoin = on AS $$
#variable_conflict use_column
DECLARE
  v_now     CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_held    TEXT[];    -- names that are held exclusively, and the claims that hold them
  v_by      TEXT[];
  v_placed  TEXT[];    -- claims that have a place, and their places
  v_places  BIGINT[];
  v_joined  TEXT[];
  v_joining BIGINT[];
  v_need    TEXT[];    -- names whose queues are to be joined, and those of them that are locked for that
  v_open    TEXT[];
BEGIN
  SELECT array_agg(d.lock_name), array_agg(coalesce(d.claim_id, '')) INTO v_held, v_by
  FROM (
    SELECT DISTINCT lock_name FROM unnest(p_names, p_claims) AS c (lock_name, claim_id)
    WHERE claim_id NOT IN (SELECT unnest(p_done))
  ) AS n, LATERAL (
    SELECT d.lock_name, d.claim_id FROM distributed_locks d
    WHERE d.lock_name = n.lock_name AND d.mode = 'exclusive' AND d.expires_at > v_now
      AND d.expires_at <= v_now + interval '1 second' + holdfast_lasts(d) OFFSET 0
  ) AS d;
  IF v_held IS NULL THEN
    RETURN;
  END IF;

  -- Keeping a place writes only that place. A locked place is being granted the lock, or given up.
  WITH kept AS (
    UPDATE holdfast_waiters w SET expires_at = v_now + k.wait * interval '1 ms', lasts = k.wait * interval '1 ms',
      waiting_since = least(w.waiting_since, v_now), channel = p_channel
    FROM (
      SELECT place.at, c.wait FROM unnest(p_names, p_claims, p_waits) AS c (lock_name, claim_id, wait), LATERAL (
        SELECT w.ctid AS at FROM holdfast_waiters w
        WHERE w.lock_name = c.lock_name AND w.claim_id = c.claim_id AND w.expires_at > p_asked
        FOR NO KEY UPDATE SKIP LOCKED
      ) AS place
      WHERE c.wait > 0 AND c.lock_name IN (SELECT unnest(v_held)) AND c.claim_id NOT IN (SELECT unnest(v_by))
    ) AS k WHERE w.ctid = k.at
    RETURNING w.claim_id, w.place
  )
  SELECT array_agg(claim_id), array_agg(place) INTO v_placed, v_places FROM kept;

  SELECT array_agg(DISTINCT lock_name) INTO v_need
  FROM unnest(p_names, p_claims, p_waits) AS c (lock_name, claim_id, wait)
  WHERE wait > 0 AND lock_name IN (SELECT unnest(v_held))
    AND claim_id NOT IN (SELECT unnest(v_by || p_done || v_placed));
  IF v_need IS NOT NULL THEN
    SELECT array_agg(lock_name) INTO v_open FROM (
      SELECT d.lock_name FROM unnest(v_need) AS n (lock_name), LATERAL (
        SELECT d.lock_name FROM distributed_locks d
        WHERE d.lock_name = n.lock_name AND d.mode = 'exclusive' AND d.expires_at > v_now AND d.contended
        FOR KEY SHARE SKIP LOCKED
      ) AS d
    ) AS locked;
    WITH marked AS (
      UPDATE distributed_locks d SET contended = true WHERE ctid = ANY (ARRAY(
        SELECT d.at FROM unnest(v_need) AS n (lock_name), LATERAL (
          SELECT d.ctid AS at FROM distributed_locks d
          WHERE d.lock_name = n.lock_name AND d.mode = 'exclusive' AND d.expires_at > v_now AND NOT d.contended
          FOR NO KEY UPDATE SKIP LOCKED
        ) AS d
      )) RETURNING lock_name
    )
    SELECT v_open || array_agg(lock_name) INTO v_open FROM marked;
    -- A claim that was handed the lock meanwhile is its holder now, and is left out.
    WITH joined AS (
      INSERT INTO holdfast_waiters AS w
      SELECT lock_name, nextval('holdfast_places'), claim_id, holder_id,
        CASE WHEN shared THEN 'shared' ELSE 'exclusive' END, max_permits, permits, ttl * interval '1 ms',
        metadata::jsonb, p_channel, v_now, v_now + wait * interval '1 ms', wait * interval '1 ms'
      FROM (
        SELECT * FROM (
          SELECT *, min(ord) OVER (PARTITION BY claim_id) AS first
          FROM unnest(p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata)
            WITH ORDINALITY AS c (
              lock_name, claim_id, holder_id, shared, max_permits, permits, ttl, wait, metadata, ord)
        ) AS c
        WHERE ord = first AND wait > 0 AND lock_name IN (SELECT unnest(v_open))
          AND claim_id NOT IN (SELECT unnest(v_by || p_done || v_placed))
          AND (SELECT d.claim_id FROM distributed_locks d WHERE d.lock_name = c.lock_name) IS DISTINCT FROM claim_id
        ORDER BY ord
      ) AS c
      ON CONFLICT (lock_name, claim_id) DO UPDATE SET expires_at = excluded.expires_at, lasts = excluded.lasts,
        waiting_since = least(w.waiting_since, v_now), channel = excluded.channel,
        place = CASE WHEN w.expires_at > p_asked THEN w.place ELSE excluded.place END
      RETURNING w.claim_id, w.place
    )
    SELECT array_agg(claim_id), array_agg(place) INTO v_joined, v_joining FROM joined;
    v_placed := v_placed || v_joined;
    v_places := v_places || v_joining;
  END IF;

  -- For each queue its front, and when the first place up to each one expires. After the hundredth place no difference
  -- is made.
  WITH refused AS (
    SELECT DISTINCT lock_name, claim_id, wait FROM unnest(p_names, p_claims, p_waits) AS c (lock_name, claim_id, wait)
    WHERE lock_name IN (SELECT unnest(v_held)) AND claim_id NOT IN (SELECT unnest(v_by || p_done))
      AND (wait = 0 OR claim_id IN (SELECT unnest(v_placed)))
  ), names AS (
    SELECT n.lock_name, d.expires_at, holdfast_lease_json(d.each) AS holder, front.places, front.gone
    FROM (SELECT DISTINCT lock_name FROM refused) AS n
    LEFT JOIN LATERAL (
      SELECT d AS each, d.expires_at FROM distributed_locks d
      WHERE d.lock_name = n.lock_name AND d.mode = 'exclusive' AND d.expires_at > v_now OFFSET 0
    ) AS d ON true, LATERAL holdfast_front(n.lock_name, NULL) AS front
  ), answers AS (
    SELECT r.claim_id, p.place, n.expires_at, n.gone,
      CASE WHEN p.place IS NOT NULL THEN coalesce(width_bucket(p.place - 1, n.places), 0) END AS ahead
    FROM refused r JOIN names n ON n.lock_name = r.lock_name
    LEFT JOIN unnest(v_placed, v_places) AS p (claim_id, place) ON p.claim_id = r.claim_id
  )
  SELECT array_agg(claim_id), array_agg(ahead),
    array_agg(CASE WHEN place IS NOT NULL THEN
      greatest(0, (extract(epoch FROM coalesce(gone[nullif(ahead, 0)], expires_at, v_now)) - extract(epoch FROM v_now))
        * 1000) END),
    (SELECT jsonb_object_agg(lock_name, holder) FROM names WHERE holder IS NOT NULL)
  INTO refused_claims, refused_ahead, refused_until, holders FROM answers;
END
$$;

-- Decides one claim.
-- Inputs:  the name's row, read without a lock; the claim, as holdfast_admit takes it; whether to wait for a locked row
-- Outputs: fencing_token and acquired_at of its lease; or ahead, until and holder, as in holdfast_acquire; or
--          not_known; and events
CREATE OR REPLACE FUNCTION holdfast_ask(
  p_row distributed_locks, p_claim holdfast_waiters, p_patient BOOLEAN,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT ahead INTEGER, OUT until FLOAT8, OUT holder JSONB,
  OUT not_known BOOLEAN,
  OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_name    CONSTANT TEXT := p_claim.lock_name;
  v_now     TIMESTAMPTZ;
  v_row     distributed_locks := p_row;
  v_refused BOOLEAN;
  v_own     BOOLEAN := false;
  v_got     RECORD;
  v_place   BIGINT;
  v_next    TIMESTAMPTZ;
BEGIN
  not_known := false;
  v_refused := CASE WHEN v_row.mode = 'exclusive' AND v_row.expires_at > clock_timestamp()
    AND v_row.claim_id <> p_claim.claim_id
    AND v_row.expires_at < clock_timestamp() + v_row.lasts THEN true ELSE holdfast_is_refused(v_row, p_claim) END;
  IF v_refused AND p_claim.lasts > interval '0' THEN
    v_got := holdfast_stand(v_row, p_claim, p_patient);
    v_place := v_got.place;
    v_own := v_got.own;
    v_row := v_got.seen;
    v_refused := v_place IS NOT NULL;
  END IF;

  IF NOT v_refused THEN
    -- If the claim was handed its lease while it waited for the row, only the lease's end changes. Readers that get
    -- here together would wait for each other if each took the stronger lock that a change of the holder needs.
    v_row := holdfast_lock(v_name, CASE WHEN v_own THEN 'mark' ELSE 'change' END, p_patient);
    IF v_row.lock_name IS NULL AND NOT p_patient THEN
      not_known := true;
      RETURN;
    ELSIF v_row.lock_name IS NULL THEN
      -- Released between the two reads.
      INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, contended)
      VALUES (v_name, p_claim.holder_id, clock_timestamp(), clock_timestamp(), true)
      ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id;
      v_row := holdfast_lock(v_name, 'change', true);
    END IF;
    v_now := clock_timestamp();
    -- Already yours: a reply was lost, or the lock was handed over.
    IF v_row.mode = 'exclusive' AND v_row.claim_id = p_claim.claim_id AND v_row.expires_at > v_now THEN
      UPDATE distributed_locks SET expires_at = v_now + p_claim.time_to_live, lasts = p_claim.time_to_live,
        acquired_at = least(acquired_at, v_now)
      WHERE lock_name = v_name;
      fencing_token := v_row.fencing_token;
      acquired_at := v_row.acquired_at;
      IF v_row.contended AND v_now + p_claim.time_to_live < v_row.expires_at THEN
        events := holdfast_first(v_name, NULL);
      END IF;
      RETURN;
    ELSIF v_row.mode = 'shared' THEN
      SELECT expires_at INTO v_next FROM holdfast_leases WHERE lock_name = v_name AND claim_id = p_claim.claim_id;
      UPDATE holdfast_leases SET expires_at = v_now + p_claim.time_to_live, lasts = p_claim.time_to_live,
        acquired_at = least(acquired_at, v_now)
      WHERE lock_name = v_name AND claim_id = p_claim.claim_id AND expires_at > v_now
      RETURNING fencing_token, acquired_at INTO fencing_token, acquired_at;
      IF FOUND THEN
        UPDATE distributed_locks
        SET expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = v_name)
        WHERE lock_name = v_name;
        IF v_now + p_claim.time_to_live < v_next THEN
          events := holdfast_first(v_name, NULL);
        END IF;
        RETURN;
      END IF;
    END IF;
    IF v_own THEN
      v_row := holdfast_lock(v_name, 'change', true);
    END IF;
    v_got := holdfast_admit(v_row, false, p_claim);
    fencing_token := v_got.fencing_token;
    acquired_at := v_got.acquired_at;
    events := v_got.events;
    IF fencing_token IS NOT NULL THEN
      RETURN;
    END IF;
    v_place := v_got.place;
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = v_name;
  END IF;

  v_now := clock_timestamp();
  IF v_row.mode = 'shared' THEN
    SELECT holdfast_lease_json(l) INTO holder FROM holdfast_leases l
    WHERE l.lock_name = v_name AND l.expires_at > v_now LIMIT 1;
  ELSIF v_row.expires_at > v_now THEN
    holder := holdfast_lease_json(v_row);
  END IF;
  IF v_place IS NOT NULL THEN
    v_got := holdfast_front(v_name, v_place);
    ahead := coalesce(cardinality(v_got.places), 0);
    v_next := v_got.gone[ahead];
    -- The first waiter waits for a lease to expire. The others wait for a place before them, which may be dead, to
    -- expire.
    IF ahead = 0 AND v_row.mode = 'shared' THEN
      SELECT min(l.expires_at) INTO v_next FROM holdfast_leases l WHERE l.lock_name = v_name AND l.expires_at > v_now;
    ELSIF ahead = 0 THEN
      v_next := v_row.expires_at;
    END IF;
    -- Not the difference of the times: a plain client's lease may end at infinity.
    until := coalesce(greatest(0, (extract(epoch FROM v_next) - extract(epoch FROM v_now)) * 1000), 0);
  END IF;
END
$$;

-- Whether a claim cannot be granted now, judged by what is visible without a lock. False: it must be decided under the
-- row's lock. So must rows that were written before the clock was set back (see holdfast_admit).
CREATE OR REPLACE FUNCTION holdfast_is_refused(p_row distributed_locks, p_claim holdfast_waiters) RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_now    CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_future CONSTANT TIMESTAMPTZ := v_now + interval '1 second';
  v_first  holdfast_waiters;
BEGIN
  IF p_row.mode = 'exclusive' AND p_row.expires_at > v_future + holdfast_lasts(p_row) THEN
    RETURN false;
  ELSIF p_row.mode = 'exclusive' AND p_row.expires_at > v_now THEN
    RETURN p_row.claim_id IS DISTINCT FROM p_claim.claim_id;
  ELSIF p_row.contended IS NOT TRUE THEN
    RETURN false;
  END IF;
  IF p_row.mode = 'shared' AND EXISTS (
    SELECT FROM holdfast_leases WHERE lock_name = p_row.lock_name AND claim_id = p_claim.claim_id AND expires_at > v_now
  ) THEN
    RETURN false;
  END IF;
  -- No claim overtakes the first waiter if that one is alive.
  SELECT * INTO v_first FROM holdfast_waiters WHERE lock_name = p_row.lock_name ORDER BY place LIMIT 1;
  IF v_first.expires_at > v_future + v_first.lasts OR (p_row.mode = 'shared' AND EXISTS (
    SELECT FROM holdfast_leases WHERE lock_name = p_row.lock_name AND expires_at > v_future + lasts
  )) THEN
    RETURN false;
  ELSIF v_first.expires_at > v_now AND v_first.claim_id <> p_claim.claim_id THEN
    RETURN true;
  ELSIF p_row.mode <> 'shared' OR v_first.expires_at <= v_now THEN
    RETURN false;
  ELSIF p_claim.mode = 'exclusive' THEN
    RETURN EXISTS (SELECT FROM holdfast_leases WHERE lock_name = p_row.lock_name AND expires_at > v_now);
  END IF;
  RETURN p_claim.max_permits IS NOT NULL AND p_claim.permits > p_claim.max_permits - (
    SELECT coalesce(sum(permits), 0) FROM holdfast_leases WHERE lock_name = p_row.lock_name AND expires_at > v_now);
END
$$;

-- Keeps a claim's place in the queue, or takes one.
-- Inputs:  the name's row, read without a lock; the rest as holdfast_ask
-- Outputs: place; NULL if the row is locked or gone, or if the claim holds the lock by now;
--          own, whether it does; seen, the row as it is now
CREATE OR REPLACE FUNCTION holdfast_stand(
  p_row distributed_locks, p_claim holdfast_waiters, p_patient BOOLEAN,
  OUT place BIGINT, OUT own BOOLEAN, OUT seen distributed_locks
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now TIMESTAMPTZ := clock_timestamp();
BEGIN
  own := false;
  seen := p_row;
  -- A locked place is being granted the lock, or given up. The name's row will show which.
  UPDATE holdfast_waiters SET expires_at = v_now + p_claim.lasts, lasts = p_claim.lasts,
    waiting_since = least(waiting_since, v_now), channel = p_claim.channel
  WHERE ctid = (
    SELECT ctid FROM holdfast_waiters
    WHERE lock_name = p_claim.lock_name AND claim_id = p_claim.claim_id AND expires_at > p_claim.waiting_since
    FOR NO KEY UPDATE SKIP LOCKED
  ) RETURNING place INTO place;
  IF place IS NOT NULL THEN
    RETURN;
  END IF;
  seen := holdfast_lock(p_claim.lock_name, CASE WHEN p_row.contended THEN 'join' ELSE 'mark' END, p_patient);
  v_now := clock_timestamp();
  own := seen.claim_id = p_claim.claim_id IS TRUE OR (seen.mode = 'shared' AND EXISTS (
    SELECT FROM holdfast_leases
    WHERE lock_name = p_claim.lock_name AND claim_id = p_claim.claim_id AND expires_at > v_now)) IS TRUE;
  IF seen.lock_name IS NULL OR own THEN
    RETURN;
  END IF;
  -- If the lock has become free meanwhile, the claim joins the queue all the same and is answered to ask again at once.
  -- Two claims that strengthened their locks of this row here would wait for each other.
  INSERT INTO holdfast_waiters AS w VALUES (
    p_claim.lock_name, nextval('holdfast_places'), p_claim.claim_id, p_claim.holder_id, p_claim.mode,
    p_claim.max_permits, p_claim.permits, p_claim.time_to_live, p_claim.metadata, p_claim.channel, v_now,
    v_now + p_claim.lasts, p_claim.lasts)
  ON CONFLICT (lock_name, claim_id) DO UPDATE SET expires_at = excluded.expires_at, lasts = excluded.lasts,
    waiting_since = least(w.waiting_since, v_now), channel = excluded.channel,
    place = CASE WHEN w.expires_at > p_claim.waiting_since THEN w.place ELSE excluded.place END
  RETURNING w.place INTO place;
  IF NOT seen.contended THEN
    UPDATE distributed_locks SET contended = true WHERE lock_name = p_claim.lock_name;
  END IF;
END
$$;

-- Locks a name's row. 0003-queue.sql says which change needs which strength.
-- Inputs:  lock name; 'change' (FOR UPDATE), 'mark' (FOR NO KEY UPDATE) or 'join' (FOR KEY SHARE); whether to wait for
--          a locked row
-- Outputs: the row; NULL if there is none or, without waiting, if it is locked
CREATE OR REPLACE FUNCTION holdfast_lock(p_lock_name TEXT, p_strength TEXT, p_patient BOOLEAN) RETURNS distributed_locks
LANGUAGE plpgsql AS $$
DECLARE
  v_row distributed_locks;
BEGIN
  IF p_strength = 'change' AND p_patient THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE;
  ELSIF p_strength = 'change' THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR UPDATE SKIP LOCKED;
  ELSIF p_strength = 'mark' AND p_patient THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR NO KEY UPDATE;
  ELSIF p_strength = 'mark' THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR NO KEY UPDATE SKIP LOCKED;
  ELSIF p_patient THEN
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR KEY SHARE;
  ELSE
    SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name FOR KEY SHARE SKIP LOCKED;
  END IF;
  RETURN v_row;
END
$$;

-- holdfast_renew
-- Inputs:  for each lease: lock name, claim id, fencing token, time to live from now in ms;
--          for all: relaxed; p_patience, see above
-- Outputs: for each true; false: it had ended, and is not created again; NULL: not known, because another transaction
--          keeps its row locked
CREATE OR REPLACE FUNCTION holdfast_renew(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN, p_patience FLOAT8 DEFAULT NULL
) RETURNS BOOLEAN[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '1s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_void    TEXT;
  v_answers BOOLEAN[];
  v_done    INTEGER[];
  v_sooner  TEXT[];
  v_each    RECORD;
  v_got     RECORD;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  IF p_patience IS NOT NULL THEN
    v_void := set_config('lock_timeout', p_patience::integer::text, true);
  END IF;
  -- Exclusive leases, each in its own row.
  IF v_count = 1 THEN
    UPDATE distributed_locks AS d SET expires_at = clock_timestamp() + p_ttls[1] * interval '1 ms',
      lasts = p_ttls[1] * interval '1 ms',
      acquired_at = least(d.acquired_at, clock_timestamp())
    FROM distributed_locks AS before
    WHERE d.lock_name = p_names[1] AND d.claim_id = p_claims[1] AND d.fencing_token = p_tokens[1]
      AND d.mode = 'exclusive' AND d.expires_at > clock_timestamp() AND before.lock_name = d.lock_name
    RETURNING '{1}', CASE WHEN d.contended AND d.expires_at < before.expires_at THEN ARRAY[d.lock_name] END
    INTO v_done, v_sooner;
  ELSE
    WITH renewed AS (
      UPDATE distributed_locks d SET expires_at = clock_timestamp() + k.ttl * interval '1 ms',
        lasts = k.ttl * interval '1 ms',
        acquired_at = least(d.acquired_at, clock_timestamp())
      FROM (
        SELECT own.at, own.expires_at, c.ttl, c.ord
        FROM unnest(p_names, p_claims, p_tokens, p_ttls)
          WITH ORDINALITY AS c (lock_name, claim_id, token, ttl, ord), LATERAL (
          SELECT d.ctid AS at, d.expires_at FROM distributed_locks d
          WHERE d.lock_name = c.lock_name AND d.claim_id = c.claim_id AND d.fencing_token = c.token
            AND d.mode = 'exclusive' AND d.expires_at > clock_timestamp() FOR NO KEY UPDATE SKIP LOCKED
        ) AS own
      ) AS k WHERE d.ctid = k.at
      RETURNING k.ord, CASE WHEN d.contended AND d.expires_at < k.expires_at THEN d.lock_name END AS sooner
    )
    SELECT array_agg(ord), array_agg(sooner) FILTER (WHERE sooner IS NOT NULL) INTO v_done, v_sooner FROM renewed;
  END IF;
  v_answers := array_fill(true, ARRAY[v_count]);
  IF cardinality(v_done) IS DISTINCT FROM v_count THEN
    FOR v_each IN
      SELECT * FROM unnest(p_names, p_claims, p_tokens, p_ttls)
        WITH ORDINALITY AS c (lock_name, claim_id, token, ttl, ord)
      WHERE ord NOT IN (SELECT unnest(v_done)) ORDER BY ord
    LOOP
      v_got := holdfast_prolong(
        v_each.lock_name, v_each.claim_id, v_each.token, v_each.ttl * interval '1 ms', v_count = 1);
      v_answers[v_each.ord] := v_got.renewed;
      IF v_got.sooner THEN
        v_sooner := v_sooner || v_each.lock_name;
      END IF;
    END LOOP;
  END IF;
  IF v_sooner IS NOT NULL THEN
    -- A lease now ends sooner: its first waiter would ask too late.
    SELECT array_agg(event) INTO v_events FROM unnest(v_sooner) AS name, unnest(holdfast_first(name, NULL)) AS event;
    IF v_events IS NOT NULL THEN
      PERFORM holdfast_tell(v_events);
    END IF;
  END IF;
  RETURN v_answers;
END
$$;

-- Renews one lease, of either mode.
-- Inputs:  as holdfast_renew; whether to wait for a locked row
-- Outputs: renewed, as in holdfast_renew; sooner, whether the lease now ends before it would have
CREATE OR REPLACE FUNCTION holdfast_prolong(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_ttl INTERVAL, p_patient BOOLEAN,
  OUT renewed BOOLEAN, OUT sooner BOOLEAN
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row    distributed_locks;
  v_before TIMESTAMPTZ;
  v_end    TIMESTAMPTZ;
BEGIN
  -- If the row, read without a lock, is not this lease's, the lease has ended and never comes back.
  SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
  renewed := CASE v_row.mode
    WHEN 'exclusive' THEN v_row.claim_id = p_claim_id AND v_row.fencing_token = p_token
    WHEN 'shared' THEN EXISTS (
      SELECT FROM holdfast_leases WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND fencing_token = p_token)
    END IS TRUE;
  IF NOT renewed THEN
    RETURN;
  END IF;
  v_row := holdfast_lock(p_lock_name, 'mark', p_patient);
  IF v_row.lock_name IS NULL AND NOT p_patient THEN
    renewed := NULL;
    RETURN;
  END IF;
  IF v_row.mode = 'exclusive' THEN
    UPDATE distributed_locks SET expires_at = clock_timestamp() + p_ttl, lasts = p_ttl,
      acquired_at = least(acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND fencing_token = p_token
      AND expires_at > clock_timestamp()
    RETURNING expires_at INTO v_end;
    v_before := v_row.expires_at;
  ELSE
    SELECT expires_at INTO v_before FROM holdfast_leases WHERE lock_name = p_lock_name AND claim_id = p_claim_id;
    UPDATE holdfast_leases SET expires_at = clock_timestamp() + p_ttl, lasts = p_ttl,
      acquired_at = least(acquired_at, clock_timestamp())
    WHERE lock_name = p_lock_name AND claim_id = p_claim_id AND fencing_token = p_token
      AND expires_at > clock_timestamp()
      AND v_row.mode = 'shared'
    RETURNING expires_at INTO v_end;
    IF v_end IS NOT NULL THEN
      UPDATE distributed_locks
      SET expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = p_lock_name)
      WHERE lock_name = p_lock_name;
    END IF;
  END IF;
  renewed := v_end IS NOT NULL;
  sooner := v_end < v_before AND v_row.contended;
END
$$;

-- holdfast_release
-- Inputs:  for each lease: lock name, claim id, fencing token (NULL: any; what the claim has, a lease or a place in the
--          queue, is ended); for all: relaxed; p_patience, see above
-- Outputs: for each whether this call ended a lease that had not ended yet; NULL: not known, because another
--          transaction keeps its row locked
CREATE OR REPLACE FUNCTION holdfast_release(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_relaxed BOOLEAN, p_patience FLOAT8 DEFAULT NULL
) RETURNS BOOLEAN[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '500ms'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_count   CONSTANT INTEGER := cardinality(p_names);
  v_void    TEXT;
  v_answers BOOLEAN[];
  v_done    INTEGER[];
  v_left    INTEGER[];
  v_ord     INTEGER;
  v_each    RECORD;
  v_got     RECORD;
  v_events  JSONB[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    v_void := holdfast_set_durability(p_relaxed);
  END IF;
  IF p_patience IS NOT NULL THEN
    v_void := set_config('lock_timeout', p_patience::integer::text, true);
  END IF;
  -- The common case: exclusive leases without waiters.
  IF v_count = 1 THEN
    DELETE FROM distributed_locks
    WHERE lock_name = p_names[1] AND claim_id = p_claims[1] AND (p_tokens[1] IS NULL OR fencing_token = p_tokens[1])
      AND mode = 'exclusive' AND NOT contended AND expires_at > clock_timestamp();
    IF FOUND THEN
      RETURN '{t}';
    END IF;
  ELSE
    WITH ended AS (
      DELETE FROM distributed_locks d
      USING (
        SELECT own.at, c.ord FROM unnest(p_names, p_claims, p_tokens)
          WITH ORDINALITY AS c (lock_name, claim_id, token, ord), LATERAL (
          SELECT d.ctid AS at FROM distributed_locks d
          WHERE d.lock_name = c.lock_name AND d.claim_id = c.claim_id AND (c.token IS NULL OR d.fencing_token = c.token)
            AND d.mode = 'exclusive' AND NOT d.contended AND d.expires_at > clock_timestamp() FOR UPDATE SKIP LOCKED
        ) AS own
      ) AS k WHERE d.ctid = k.at
      RETURNING k.ord
    )
    SELECT array_agg(ord) INTO v_done FROM ended;
  END IF;
  v_answers := array_fill(true, ARRAY[v_count]);
  IF cardinality(v_done) IS DISTINCT FROM v_count THEN
    IF v_count > 1 THEN
      -- Places in the queues of locks that others hold. Leaving them frees nothing.
      WITH gone AS (
        DELETE FROM holdfast_waiters w
        USING (
          SELECT own.at, c.ord FROM unnest(p_names, p_claims) WITH ORDINALITY AS c (lock_name, claim_id, ord), LATERAL (
            SELECT w.ctid AS at FROM holdfast_waiters w
            WHERE w.lock_name = c.lock_name AND w.claim_id = c.claim_id FOR UPDATE SKIP LOCKED
          ) AS own
          WHERE c.ord NOT IN (SELECT unnest(v_done)) AND (
            SELECT d.mode = 'exclusive' AND d.expires_at > clock_timestamp() AND d.claim_id IS DISTINCT FROM c.claim_id
            FROM distributed_locks d WHERE d.lock_name = c.lock_name)
        ) AS k WHERE w.ctid = k.at
        RETURNING k.ord, w.lock_name, w.place
      ), fronts AS (
        SELECT lock_name, min(place) AS place FROM gone GROUP BY lock_name
      )
      SELECT (SELECT array_agg(ord) FROM gone),
        (SELECT array_agg(jsonb_build_array(lock_name, place)) FROM fronts)
      INTO v_left, v_events;
      FOREACH v_ord IN ARRAY coalesce(v_left, '{}') LOOP
        v_answers[v_ord] := false;
      END LOOP;
      IF v_left IS NOT NULL THEN
        -- In a statement of its own: the one that removes the places still sees them.
        SELECT array_agg(event) INTO v_events
        FROM unnest(v_events) AS front, unnest(holdfast_first(front ->> 0, (front ->> 1)::bigint)) AS event;
      END IF;
    END IF;
    FOR v_each IN
      SELECT * FROM unnest(p_names, p_claims, p_tokens) WITH ORDINALITY AS c (lock_name, claim_id, token, ord)
      WHERE ord NOT IN (SELECT unnest(v_done || v_left)) ORDER BY ord
    LOOP
      v_got := holdfast_end(v_each.lock_name, v_each.claim_id, v_each.token, v_count = 1);
      v_answers[v_each.ord] := v_got.ended;
      v_events := v_events || v_got.events;
    END LOOP;
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
  RETURN v_answers;
END
$$;

-- Ends one lease or place in the queue, and hands the lock over to the next waiters.
-- Inputs:  as holdfast_release; whether to wait for a locked row
-- Outputs: ended, as in holdfast_release; events
CREATE OR REPLACE FUNCTION holdfast_end(
  p_lock_name TEXT, p_claim_id TEXT, p_token BIGINT, p_patient BOOLEAN, OUT ended BOOLEAN, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_row    distributed_locks;
  v_free   BOOLEAN := false;
  v_placed BOOLEAN;
  v_left   BIGINT;
  v_got    RECORD;
BEGIN
  ended := false;
  IF p_token IS NOT NULL AND p_patient THEN
    -- If the row is no longer this lease's, the lease has ended, and there is nothing to wait for.
    SELECT * INTO v_row FROM distributed_locks
    WHERE lock_name = p_lock_name AND (mode = 'shared' OR claim_id = p_claim_id) FOR UPDATE;
  ELSE
    v_placed := true;
    LOOP
      SELECT * INTO v_row FROM distributed_locks WHERE lock_name = p_lock_name;
      -- A plain client's row has the claim id that inspect shows for it.
      EXIT WHEN v_row.mode = 'shared' OR v_row.expires_at <= clock_timestamp()
        OR coalesce(v_row.claim_id, 'plain:' || v_row.holder_id) = p_claim_id;
      -- The claim does not hold the lock. It has a place at most, and leaving it frees nothing.
      IF NOT v_placed THEN
        RETURN;
      END IF;
      DELETE FROM holdfast_waiters WHERE ctid = (
        SELECT ctid FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id FOR UPDATE SKIP LOCKED
      ) RETURNING place INTO v_left;
      IF v_left IS NOT NULL THEN
        events := holdfast_first(p_lock_name, v_left);
        RETURN;
      END IF;
      -- If the place exists and is locked, it is being granted the lock: the row's lock will show it. If it does not
      -- exist, the row is read once more. A lease that replaced the place was committed together with its removal, and
      -- would otherwise be left behind.
      v_placed := EXISTS (SELECT FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id);
      EXIT WHEN v_placed;
    END LOOP;
    v_row := holdfast_lock(p_lock_name, 'change', p_patient);
    IF v_row.lock_name IS NULL AND NOT p_patient THEN
      ended := NULL;
      RETURN;
    END IF;
  END IF;

  IF v_row.mode = 'exclusive' THEN
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
  -- A holder has no place in the queue.
  IF NOT ended THEN
    DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id RETURNING place INTO v_left;
  END IF;
  IF v_row.lock_name IS NOT NULL AND (v_free OR v_left IS NOT NULL) THEN
    v_got := holdfast_admit(v_row, v_free AND v_row.mode = 'exclusive', NULL);
    events := v_got.events;
    IF v_left IS NOT NULL AND events IS NULL THEN
      events := holdfast_first(p_lock_name, v_left);
    END IF;
  END IF;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (4) ON CONFLICT DO NOTHING;
