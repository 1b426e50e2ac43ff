-- The migrations 1 to 10 as version 10 had them, without their comments. A test brings such a schema up to date.
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_advisory_xact_lock(7813544519228563562);

CREATE SCHEMA IF NOT EXISTS :"schema";

SET LOCAL search_path TO :"schema", pg_temp;

CREATE TABLE IF NOT EXISTS holdfast_migrations (
  version    INTEGER     PRIMARY KEY,
  applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE IF NOT EXISTS distributed_locks (
  lock_name   VARCHAR(255) COLLATE "C" PRIMARY KEY,
  holder_id   VARCHAR(255) NOT NULL,
  acquired_at TIMESTAMPTZ  NOT NULL,
  expires_at  TIMESTAMPTZ  NOT NULL,
  metadata    JSONB
);

ALTER TABLE distributed_locks
  ADD COLUMN IF NOT EXISTS claim_id      TEXT,
  ADD COLUMN IF NOT EXISTS fencing_token BIGINT,
  ADD COLUMN IF NOT EXISTS mode          TEXT    NOT NULL DEFAULT 'exclusive',
  ADD COLUMN IF NOT EXISTS contended     BOOLEAN NOT NULL DEFAULT false;

DO $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'distributed_locks'::regclass AND a.attname = 'expires_at' AND i.indpred IS NULL
  ) THEN
    CREATE INDEX distributed_locks_expires_at ON distributed_locks (expires_at);
  END IF;
END
$$;

CREATE TABLE IF NOT EXISTS holdfast_leases (
  lock_name     VARCHAR(255) COLLATE "C" NOT NULL,
  claim_id      TEXT         NOT NULL,
  holder_id     VARCHAR(255) NOT NULL,
  max_permits   BIGINT,
  permits       BIGINT       NOT NULL,
  fencing_token BIGINT       NOT NULL,
  acquired_at   TIMESTAMPTZ  NOT NULL,
  expires_at    TIMESTAMPTZ  NOT NULL,
  metadata      JSONB,
  PRIMARY KEY (lock_name, claim_id)
);
CREATE INDEX IF NOT EXISTS holdfast_leases_expires_at ON holdfast_leases (expires_at);

CREATE TABLE IF NOT EXISTS holdfast_waiters (
  lock_name     VARCHAR(255) COLLATE "C" NOT NULL,
  place         BIGINT       NOT NULL,
  claim_id      TEXT         NOT NULL,
  holder_id     VARCHAR(255) NOT NULL,
  mode          TEXT         NOT NULL,
  max_permits   BIGINT,
  permits       BIGINT       NOT NULL,
  time_to_live  INTERVAL     NOT NULL,
  metadata      JSONB,
  channel       TEXT         NOT NULL,
  waiting_since TIMESTAMPTZ  NOT NULL,
  expires_at    TIMESTAMPTZ  NOT NULL,
  PRIMARY KEY (lock_name, place),
  UNIQUE (lock_name, claim_id)
);
CREATE INDEX IF NOT EXISTS holdfast_waiters_expires_at ON holdfast_waiters (expires_at);
CREATE SEQUENCE IF NOT EXISTS holdfast_places;

CREATE TABLE IF NOT EXISTS holdfast_fences (
  resource      TEXT COLLATE "C" PRIMARY KEY,
  fencing_token BIGINT      NOT NULL,
  seen_at       TIMESTAMPTZ NOT NULL
);

INSERT INTO holdfast_migrations (version) VALUES (1) ON CONFLICT DO NOTHING;

CREATE SEQUENCE IF NOT EXISTS holdfast_tokens AS BIGINT;

CREATE OR REPLACE FUNCTION holdfast_raise_tokens() RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE
  v_lead  CONSTANT BIGINT := 60000000;
  v_start CONSTANT BIGINT := extract(epoch FROM greatest(
    pg_postmaster_start_time(), pg_last_xact_replay_timestamp() + interval '1 minute',
    CASE WHEN current_setting('server_version_num')::integer >= 150000
      THEN pg_stat_get_bgwriter_stat_reset_time() END)) * 1000000;
  v_last  BIGINT := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
  v_clock BIGINT := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
  IF v_last >= v_clock AND v_last >= v_start + v_lead THEN
    RETURN;
  END IF;
  BEGIN
    PERFORM pg_advisory_lock(7813544519228563561);
    v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
    v_clock := extract(epoch FROM clock_timestamp()) * 1000000;
    IF (v_last < v_clock OR v_last < v_start + v_lead) AND v_last < v_clock + v_lead THEN
      PERFORM setval('holdfast_tokens', v_clock + v_lead);
    END IF;
    PERFORM pg_advisory_unlock(7813544519228563561);
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    PERFORM pg_advisory_unlock(7813544519228563561) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
      AND (classid::bigint << 32 | objid::bigint) = 7813544519228563561;
    RAISE;
  END;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (2) ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION holdfast_admit(
  p_row distributed_locks, p_free BOOLEAN, p_claim holdfast_waiters, p_wait INTERVAL,
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
  v_held      BOOLEAN := p_row.mode = 'exclusive' AND p_row.expires_at > v_now AND NOT p_free;
  v_leases    BIGINT := 0;
  v_permits   BIGINT := 0;
  v_queued    BOOLEAN := false;
  v_changed   BOOLEAN := p_free;
  v_contended BOOLEAN;
BEGIN
  IF v_row.mode = 'shared' THEN
    DELETE FROM holdfast_leases WHERE lock_name = v_name AND expires_at <= v_now;
    SELECT count(*), coalesce(sum(permits), 0) INTO v_leases, v_permits FROM holdfast_leases WHERE lock_name = v_name;
    v_changed := true;
  END IF;
  IF v_asks AND NOT v_held THEN
    UPDATE holdfast_waiters SET expires_at = v_now + p_wait
    WHERE lock_name = v_name AND claim_id = p_claim.claim_id AND expires_at > v_now;
  END IF;

  WHILE NOT v_held LOOP
    SELECT * INTO v_waiter FROM holdfast_waiters WHERE lock_name = v_name ORDER BY place LIMIT 1;
    IF v_waiter.place IS NULL THEN
      EXIT WHEN NOT v_asks OR fencing_token IS NOT NULL;
      v_waiter := p_claim;
    ELSIF v_waiter.expires_at <= v_now THEN
      DELETE FROM holdfast_waiters WHERE lock_name = v_name AND place = v_waiter.place;
      CONTINUE;
    END IF;
    IF (v_waiter.mode = 'exclusive' AND v_leases > 0) OR (v_waiter.mode = 'shared'
      AND v_permits + v_waiter.permits > v_waiter.max_permits) THEN
      v_queued := v_waiter.place IS NOT NULL;
      EXIT;
    END IF;
    IF v_waiter.place IS NOT NULL THEN
      DELETE FROM holdfast_waiters WHERE lock_name = v_name AND place = v_waiter.place;
    END IF;
    v_changed := true;
    v_row.fencing_token := nextval('holdfast_tokens');
    v_row.holder_id := v_waiter.holder_id;
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
      v_row.metadata := v_waiter.metadata;
      v_row.expires_at := v_waiter.expires_at;
    ELSE
      IF v_leases = 0 AND p_row.mode = 'exclusive' THEN
        DELETE FROM holdfast_leases WHERE lock_name = v_name;
      END IF;
      v_leases := v_leases + 1;
      v_permits := v_permits + v_waiter.permits;
      INSERT INTO holdfast_leases VALUES (
        v_name, v_waiter.claim_id, v_waiter.holder_id, v_waiter.max_permits, v_waiter.permits,
        v_row.fencing_token, v_now, v_waiter.expires_at, v_waiter.metadata);
    END IF;
  END LOOP;

  IF v_asks AND fencing_token IS NULL AND p_wait > interval '0' THEN
    INSERT INTO holdfast_waiters AS w VALUES (
      v_name, nextval('holdfast_places'), p_claim.claim_id, p_claim.holder_id, p_claim.mode, p_claim.max_permits,
      p_claim.permits, p_claim.time_to_live, p_claim.metadata, p_claim.channel, v_now, v_now + p_wait)
    ON CONFLICT (lock_name, claim_id) DO UPDATE SET expires_at = excluded.expires_at,
      place = CASE WHEN w.expires_at > v_now THEN w.place ELSE excluded.place END
    RETURNING w.place INTO place;
    v_queued := true;
  END IF;

  v_contended := v_leases > 0 OR v_queued OR (p_row.contended
    AND current_setting('transaction_isolation') <> 'read committed');
  IF v_held AND v_changed THEN
    UPDATE distributed_locks SET mode = 'exclusive', claim_id = v_row.claim_id, holder_id = v_row.holder_id,
      metadata = v_row.metadata, fencing_token = v_row.fencing_token, acquired_at = v_now,
        expires_at = v_row.expires_at,
      contended = v_contended OR EXISTS (SELECT FROM holdfast_waiters w WHERE w.lock_name = v_name)
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
      acquired_at = CASE WHEN p_row.mode = 'shared' THEN p_row.acquired_at ELSE v_now END,
      expires_at = (SELECT max(l.expires_at) FROM holdfast_leases l WHERE l.lock_name = v_name)
    WHERE lock_name = v_name;
  ELSIF v_changed OR NOT p_row.contended THEN
    UPDATE distributed_locks SET mode = 'exclusive', contended = true, claim_id = NULL, metadata = NULL,
      expires_at = least(expires_at, v_now)
    WHERE lock_name = v_name;
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_first(p_lock_name TEXT) RETURNS JSONB[]
LANGUAGE sql AS $$
  SELECT array_agg(jsonb_build_array(channel, 'wake', claim_id, lock_name))
  FROM (SELECT * FROM holdfast_waiters WHERE lock_name = p_lock_name ORDER BY place LIMIT 1) AS first
$$;

CREATE OR REPLACE FUNCTION holdfast_tell(p_events JSONB[]) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
  IF cardinality(p_events) = 1 THEN
    PERFORM pg_notify(p_events[1] ->> 0, jsonb_build_array(p_events[1] - 0)::text);
  ELSE
    PERFORM pg_notify(channel, payload) FROM (
      SELECT channel, jsonb_agg(event)::text AS payload FROM (
        SELECT each ->> 0 AS channel, each - 0 AS event,
          (row_number() OVER (PARTITION BY each ->> 0 ORDER BY ord)) / 3 AS part
        FROM unnest(p_events) WITH ORDINALITY AS events (each, ord)
      ) AS parts GROUP BY channel, part
    ) AS messages;
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_sweep(p_most INTEGER) RETURNS JSONB[]
LANGUAGE plpgsql SET enable_sort = off SET enable_bitmapscan = off AS $$
DECLARE
  v_rows   TID[];
  v_queues distributed_locks[];
  v_row    distributed_locks;
  v_events JSONB[];
  v_before TIMESTAMPTZ := clock_timestamp() - interval '5 seconds';
BEGIN
  SELECT array_agg(ended.ctid) FILTER (WHERE NOT contended), array_agg(ended.each) FILTER (WHERE contended) INTO v_rows,
    v_queues
  FROM (
    SELECT ctid, contended, d AS each FROM distributed_locks d WHERE expires_at < v_before
    ORDER BY expires_at LIMIT p_most FOR UPDATE SKIP LOCKED
  ) AS ended;
  DELETE FROM distributed_locks WHERE ctid = ANY (v_rows);
  FOREACH v_row IN ARRAY coalesce(v_queues[1 : 16], '{}') LOOP
    v_events := v_events || (holdfast_admit(v_row, false, NULL, NULL)).events;
  END LOOP;
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
  v_rest    INTEGER[];
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

  IF v_count = 1 THEN
    INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, metadata, claim_id,
      fencing_token, contended)
    SELECT p_names[1], p_holders[1], t, CASE WHEN p_shared[1] THEN t ELSE t + p_ttls[1] * interval '1 ms' END,
      p_metadata[1]::jsonb,
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
      INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, metadata, claim_id,
        fencing_token, contended)
      SELECT lock_name, holder_id, clock_timestamp(),
        clock_timestamp() + CASE WHEN shared THEN 0 ELSE ttl END * interval '1 ms',
        metadata::jsonb, CASE WHEN NOT shared THEN claim_id END, nextval('holdfast_tokens'), shared
      FROM first
      ORDER BY lock_name COLLATE "C"
      ON CONFLICT (lock_name) DO UPDATE SET holder_id = excluded.holder_id, acquired_at = clock_timestamp(),
        expires_at = clock_timestamp() + (excluded.expires_at - excluded.acquired_at), metadata = excluded.metadata,
        claim_id = excluded.claim_id, mode = 'exclusive', fencing_token = nextval('holdfast_tokens')
      WHERE excluded.claim_id IS NOT NULL AND d.expires_at <= clock_timestamp() AND NOT d.contended
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

  IF v_rest IS NULL AND cardinality(granted_claims) IS DISTINCT FROM v_count THEN
    SELECT array_agg(ord ORDER BY ord) INTO v_rest FROM unnest(p_claims) WITH ORDINALITY AS c (claim_id, ord)
    WHERE claim_id NOT IN (SELECT unnest(coalesce(granted_claims, '{}')));
  END IF;
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
    refusals := (SELECT jsonb_object_agg(claim_id, reason) FROM unnest(v_refused, v_reasons) AS r (claim_id, reason));
  END IF;

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

CREATE OR REPLACE FUNCTION holdfast_ask(
  p_claim holdfast_waiters, p_wait INTERVAL,
  OUT fencing_token BIGINT, OUT acquired_at TIMESTAMPTZ, OUT refusal JSONB, OUT events JSONB[]
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_now   CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_row   distributed_locks;
  v_held  BOOLEAN;
  v_got   RECORD;
  v_found JSONB;
  v_place BIGINT;
  v_ahead BIGINT;
  v_next  TIMESTAMPTZ;
BEGIN
  SELECT * INTO STRICT v_row FROM distributed_locks WHERE lock_name = p_claim.lock_name;
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
  FOR v_ord IN 1 .. v_count LOOP
    UPDATE distributed_locks AS d SET expires_at = clock_timestamp() + p_ttls[v_ord] * interval '1 ms'
    FROM distributed_locks AS before
    WHERE d.lock_name = p_names[v_ord] AND d.claim_id = p_claims[v_ord] AND d.fencing_token = p_tokens[v_ord]
      AND d.mode = 'exclusive' AND d.expires_at > clock_timestamp() AND before.lock_name = d.lock_name
    RETURNING d.contended AND d.expires_at < before.expires_at INTO v_sooner;
    v_answers[v_ord] := FOUND;
    IF v_sooner THEN
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

CREATE OR REPLACE FUNCTION holdfast_release(p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[],
  p_relaxed BOOLEAN) RETURNS BOOLEAN[]
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
  FOR v_ord IN 1 .. v_count LOOP
    DELETE FROM distributed_locks
    WHERE lock_name = p_names[v_ord] AND claim_id = p_claims[v_ord] AND (p_tokens[v_ord] IS NULL
      OR fencing_token = p_tokens[v_ord])
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

CREATE OR REPLACE FUNCTION holdfast_inspect(p_lock_name TEXT, p_prefix TEXT, p_after TEXT,
  p_page_size INTEGER) RETURNS JSONB
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_now     TIMESTAMPTZ := clock_timestamp();
  v_names   TEXT[];
  v_leases  JSONB;
  v_waiters JSONB;
  v_more    BOOLEAN;
BEGIN
  IF p_lock_name IS NOT NULL THEN
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

  SELECT jsonb_agg(lease ORDER BY lease ->> 'lockName' COLLATE "C", (lease ->> 'fencingToken')::bigint) INTO v_leases
    FROM (
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
    clock_timestamp() - acquired_at AS age, expires_at - clock_timestamp() AS expires_in, metadata
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

DO $$
DECLARE
  v_old REGPROCEDURE;
BEGIN
  FOR v_old IN
    SELECT p.oid FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
      AND p.prokind = 'f' AND p.prorettype = 'boolean'::regtype AND p.pronargs >= 2
      AND p.proargtypes[0] IN ('text'::regtype, 'varchar'::regtype) AND p.proargtypes[1] IN ('text'::regtype,
        'varchar'::regtype) AND (
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
  v_row    distributed_locks;
  v_claim  holdfast_waiters;
  v_got    RECORD;
  v_events JSONB[];
  v_wrote  BOOLEAN := pg_current_xact_id_if_assigned() IS NOT NULL;
BEGIN
  IF p_ttl_seconds IS NULL OR p_ttl_seconds <= 0 THEN
    RAISE EXCEPTION 'p_ttl_seconds must be positive, but is %', p_ttl_seconds USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_lock_name IS NULL OR char_length(p_lock_name) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'p_lock_name must be 1 to 255 characters, but is %',
      p_lock_name USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_holder_id IS NULL OR char_length(p_holder_id) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'p_holder_id must be 1 to 255 characters, but is %',
      p_holder_id USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM holdfast_raise_tokens();
  INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at, contended)
  VALUES (p_lock_name, p_holder_id, clock_timestamp(), clock_timestamp(), true)
  ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id RETURNING * INTO v_row;
  IF v_row.mode = 'exclusive' AND v_row.claim_id IS NULL AND v_row.holder_id = p_holder_id
    AND v_row.expires_at > clock_timestamp() THEN
    UPDATE distributed_locks SET expires_at = clock_timestamp() + p_ttl_seconds * interval '1 second',
      metadata = p_metadata
    WHERE lock_name = p_lock_name;
    RETURN true;
  END IF;
  v_claim.lock_name := p_lock_name;
  v_claim.claim_id := 'plain:' || p_holder_id;
  v_claim.holder_id := p_holder_id;
  v_claim.mode := 'exclusive';
  v_claim.permits := 1;
  v_claim.time_to_live := p_ttl_seconds * interval '1 second';
  v_claim.metadata := p_metadata;
  v_got := holdfast_admit(v_row, false, v_claim, interval '0');
  IF v_got.fencing_token IS NOT NULL THEN
    UPDATE distributed_locks SET claim_id = NULL WHERE lock_name = p_lock_name;
  END IF;
  v_events := v_got.events;
  IF NOT v_wrote AND clock_timestamp() - now() < interval '1 second'
    AND current_setting('transaction_isolation') = 'read committed' THEN
    v_events := v_events || holdfast_sweep(10);
  END IF;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
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
  v_got := holdfast_end(p_lock_name, 'plain:' || p_holder_id, NULL);
  IF v_got.events IS NOT NULL THEN
    PERFORM holdfast_tell(v_got.events);
  END IF;
  RETURN v_got.ended;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (6) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS holdfast_rates (
  name       TEXT COLLATE "C" PRIMARY KEY,
  state      FLOAT8[]    NOT NULL,
  policy     INTEGER     NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS holdfast_rates_expires_at ON holdfast_rates (expires_at);

CREATE OR REPLACE FUNCTION holdfast_rate_step(
  p_state FLOAT8[], p_now FLOAT8, p_count FLOAT8, p_policy INTEGER, p_steps FLOAT8[], p_fulls FLOAT8[]) RETURNS FLOAT8[]
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  v_state FLOAT8[] := ARRAY[p_count, 0];
  v_full  FLOAT8;
  v_ahead FLOAT8;
BEGIN
  FOR j IN 1..array_length(p_fulls, 2) LOOP
    v_full := p_fulls[p_policy][j];
    EXIT WHEN v_full IS NULL;
    v_ahead := greatest(p_state[j + 2] - p_now, 0);
    IF v_ahead > v_full + 10000 THEN v_ahead := v_full; END IF;
    v_state[j + 2] := v_ahead;
    v_state[1] := greatest(0, least(v_state[1], floor((v_full - v_ahead) / p_steps[p_policy][j])));
  END LOOP;
  FOR j IN 3..array_length(v_state, 1) LOOP
    v_state[j] := p_now + v_state[j] + v_state[1] * p_steps[p_policy][j - 2];
    v_state[2] := greatest(v_state[2], v_state[j]);
  END LOOP;
  RETURN v_state;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_consume(
  p_names TEXT[], p_counts INTEGER[], p_policies INTEGER[], p_steps FLOAT8[], p_fulls FLOAT8[],
    p_relaxed BOOLEAN) RETURNS FLOAT8[]
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s' AS $$
DECLARE
  v_at     TIMESTAMPTZ := clock_timestamp();
  v_now    FLOAT8 := extract(epoch FROM v_at) * 1000;
  v_answer FLOAT8[];
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  WITH done AS (
    INSERT INTO holdfast_rates AS r (name, state, policy, expires_at)
    SELECT name, state, policy, v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms'
    FROM (
      SELECT name, policy, holdfast_rate_step(NULL, v_now, count, policy, p_steps, p_fulls) AS state
      FROM unnest(p_names, p_counts, p_policies) AS asked (name, count, policy)
      OFFSET 0
    ) AS fresh
    ON CONFLICT (name) DO UPDATE SET (state, policy, expires_at) = (
      SELECT state, excluded.policy,
        CASE WHEN r.expires_at >= v_at + interval '5 s' + (state[2] - v_now) * interval '1 ms'
        THEN r.expires_at ELSE v_at + interval '10 s' + (state[2] - v_now) * interval '1.25 ms' END
      FROM (
        SELECT holdfast_rate_step(r.state, v_now, excluded.state[1], excluded.policy, p_steps, p_fulls) AS state
        OFFSET 0
      ) AS next
    )
    RETURNING state
  )
  SELECT array_agg(CASE WHEN place = 1 THEN each ELSE each - v_now END)
  INTO v_answer FROM done, unnest(state) WITH ORDINALITY AS parts (each, place) WHERE place <> 2;
  IF random() < 0.25 THEN
    DELETE FROM holdfast_rates WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM holdfast_rates WHERE expires_at < clock_timestamp()
      ORDER BY expires_at LIMIT 8 * cardinality(p_names) + 16 FOR UPDATE SKIP LOCKED));
  END IF;
  RETURN v_answer;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (7) ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION holdfast_fence(p_resource TEXT, p_token BIGINT) RETURNS VOID
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_largest BIGINT;
BEGIN
  INSERT INTO holdfast_fences AS f VALUES (p_resource, p_token, clock_timestamp())
  ON CONFLICT (resource) DO UPDATE SET fencing_token = excluded.fencing_token, seen_at = excluded.seen_at
  WHERE f.fencing_token <= excluded.fencing_token;
  IF NOT FOUND THEN
    SELECT fencing_token INTO v_largest FROM holdfast_fences WHERE resource = p_resource;
    RAISE EXCEPTION 'the fencing token % is stale: "%" has seen %', p_token, p_resource, v_largest
      USING ERRCODE = 'HF001', DETAIL = v_largest::text, HINT = 'The lease under which this is written was lost.';
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_forget_fences(p_unused_for INTERVAL) RETURNS BIGINT
LANGUAGE sql SET search_path FROM CURRENT AS $$
  WITH forgotten AS (DELETE FROM holdfast_fences WHERE seen_at < clock_timestamp() - p_unused_for RETURNING 1)
  SELECT count(*) FROM forgotten
$$;

INSERT INTO holdfast_migrations (version) VALUES (8) ON CONFLICT DO NOTHING;

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
    v_events := v_events || (SELECT e.events FROM holdfast_end(p_lock_name, v_claim, NULL) AS e);
  END LOOP;
  DELETE FROM holdfast_forced_releases WHERE id <= v_last - 1000;
  IF v_events IS NOT NULL THEN
    PERFORM holdfast_tell(v_events);
  END IF;
  RETURN coalesce(cardinality(v_claims), 0);
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (9) ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION holdfast_steal(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN,
  OUT fencing_token BIGINT, OUT granted_at FLOAT8
)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '4s'
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v_row  distributed_locks;
  v_now  TIMESTAMPTZ := clock_timestamp();
  v_ttl  INTERVAL := p_ttl * interval '1 ms';
  v_last BIGINT;
BEGIN
  IF p_relaxed OR current_setting('synchronous_commit') = 'off' THEN
    PERFORM holdfast_set_durability(p_relaxed);
  END IF;
  PERFORM holdfast_raise_tokens();

  INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at)
  VALUES (p_lock_name, p_holder_id, v_now, v_now)
  ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id;
  SELECT * INTO STRICT v_row FROM distributed_locks WHERE lock_name = p_lock_name;
  v_now := clock_timestamp();

  IF v_row.mode = 'exclusive' AND v_row.claim_id = p_claim_id AND v_row.expires_at > v_now THEN
    UPDATE distributed_locks SET expires_at = v_now + v_ttl WHERE lock_name = p_lock_name;
    fencing_token := v_row.fencing_token;
    granted_at := extract(epoch FROM v_row.acquired_at) * 1000;
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
    SELECT jsonb_agg(claim_id) AS lost, max(id) AS last FROM (SELECT *, row_number() OVER () AS number
      FROM recorded) AS r GROUP BY number / 50
  ), told AS (
    SELECT pg_notify('holdfast_stolen', jsonb_build_object('lost', lost, 'by', p_holder_id)::text), last FROM parts
  )
  SELECT max(last) INTO v_last FROM told;
  DELETE FROM holdfast_forced_releases WHERE id <= v_last - 1000;
  DELETE FROM holdfast_leases WHERE lock_name = p_lock_name;
  DELETE FROM holdfast_waiters WHERE lock_name = p_lock_name AND claim_id = p_claim_id;

  UPDATE distributed_locks SET mode = 'exclusive', claim_id = p_claim_id, holder_id = p_holder_id,
    metadata = p_metadata::jsonb,
    fencing_token = nextval('holdfast_tokens'), acquired_at = v_now, expires_at = v_now + v_ttl
  WHERE lock_name = p_lock_name RETURNING fencing_token INTO fencing_token;
  granted_at := extract(epoch FROM v_now) * 1000;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (10) ON CONFLICT DO NOTHING;

COMMIT;
