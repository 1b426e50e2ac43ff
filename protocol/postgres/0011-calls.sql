-- Migration 11: the procedures that a client calls. They run the functions of the earlier migrations, in transactions
-- of their own.
--
-- holdfast_call_acquire, holdfast_call_steal, holdfast_call_renew, holdfast_call_release
-- Inputs:  as the functions without _call; NULL for each output
-- Outputs: as the functions without _call, with arrays and JSON as text, so that every client reads them the same way
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
--
-- A procedure with a SET clause cannot COMMIT. So the text contains the schema's name, as %1$I.

-- Ends the transaction and begins a new one that is READ COMMITTED, even if that is not the default: with a snapshot
-- that is taken too early, every concurrent change would be an error. The default is read before the COMMIT, because
-- afterwards reading it would be a query, and the level can only be set before the first query. The level of this
-- transaction does not tell: an earlier call may have set it.
-- Codes:   2D000  called inside a transaction that the caller has begun
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

-- How long to wait for the next row, in ms: p_each, but not beyond p_until, and at least 1.
CREATE OR REPLACE FUNCTION holdfast_patience(p_each FLOAT8, p_until TIMESTAMPTZ) RETURNS FLOAT8
LANGUAGE plpgsql AS $$
BEGIN
  RETURN greatest(1, ceil(least(p_each, extract(epoch FROM p_until - clock_timestamp()) * 1000)));
END
$$;

DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN,
  INOUT granted_claims TEXT, INOUT granted_tokens TEXT, INOUT granted_at TEXT,
  INOUT refused_claims TEXT, INOUT refused_ahead TEXT, INOUT refused_until TEXT, INOUT refused_at TEXT,
  INOUT holders TEXT,
  INOUT not_known TEXT
)
LANGUAGE plpgsql AS $$
DECLARE
  v_asked CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_got   RECORD;
  v_more  RECORD;
  v_each  RECORD;
  v_until TIMESTAMPTZ;
  v_locked TEXT;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  IF cardinality(p_names) = 1 THEN
    v_got := %1$I.holdfast_acquire(
      p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata, p_channel, p_relaxed);
  ELSE
    BEGIN
      SELECT * INTO v_got FROM %1$I.holdfast_acquire(
        p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata, p_channel, p_relaxed,
        50);
    EXCEPTION WHEN lock_not_available THEN
      -- Another transaction has taken a free name and not committed, or keeps a waiter's place locked. So the claims
      -- are decided one by one.
      SELECT NULL::text[] AS granted_claims, NULL::bigint[] AS granted_tokens, NULL::float8[] AS granted_at,
        NULL::text[] AS refused_claims, NULL::integer[] AS refused_ahead, NULL::float8[] AS refused_until,
        extract(epoch FROM now())::float8 * 1000 AS refused_at,
        NULL::jsonb AS holders, p_claims AS not_known INTO v_got;
    END;
    IF v_got.not_known IS NOT NULL THEN
      CALL %1$I.holdfast_begin();
      v_until := clock_timestamp() + interval '250 ms';
      FOR v_each IN
        SELECT * FROM unnest(p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata)
          WITH ORDINALITY AS c (lock_name, claim_id, holder_id, shared, max_permits, permits, ttl, wait, metadata, ord)
        WHERE claim_id IN (SELECT unnest(v_got.not_known)) ORDER BY lock_name COLLATE "C", ord
      LOOP
        EXIT WHEN clock_timestamp() > v_until + interval '1 s';
        -- A claim on the same name must not overtake one that is not known.
        CONTINUE WHEN v_each.lock_name = v_locked;
        BEGIN
          SELECT * INTO v_more FROM %1$I.holdfast_acquire(ARRAY[v_each.lock_name], ARRAY[v_each.claim_id],
            ARRAY[v_each.holder_id], ARRAY[v_each.shared], ARRAY[v_each.max_permits], ARRAY[v_each.permits],
            ARRAY[v_each.ttl], ARRAY[v_each.wait],
            ARRAY[v_each.metadata], p_channel, p_relaxed, %1$I.holdfast_patience(50, v_until), v_asked);
          v_got.granted_claims := v_got.granted_claims || v_more.granted_claims;
          v_got.granted_tokens := v_got.granted_tokens || v_more.granted_tokens;
          v_got.granted_at := v_got.granted_at || v_more.granted_at;
          v_got.refused_claims := v_got.refused_claims || v_more.refused_claims;
          v_got.refused_ahead := v_got.refused_ahead || v_more.refused_ahead;
          v_got.refused_until := v_got.refused_until || v_more.refused_until;
          v_got.holders := coalesce(v_got.holders || v_more.holders, v_got.holders, v_more.holders);
          v_got.not_known := array_remove(v_got.not_known, v_each.claim_id);
        EXCEPTION WHEN lock_not_available THEN
          v_locked := v_each.lock_name;  -- The claim stays not known.
        END;
      END LOOP;
    END IF;
  END IF;
  granted_claims := v_got.granted_claims::text;
  granted_tokens := v_got.granted_tokens::text;
  granted_at := v_got.granted_at::text;
  refused_claims := v_got.refused_claims::text;
  refused_ahead := v_got.refused_ahead::text;
  refused_until := v_got.refused_until::text;
  refused_at := v_got.refused_at::text;
  holders := v_got.holders::text;
  not_known := v_got.not_known::text;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_steal(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN, p_up_to BIGINT,
  INOUT fencing_token TEXT, INOUT granted_at TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  SELECT s.fencing_token::text, s.granted_at::text INTO fencing_token, granted_at
  FROM %1$I.holdfast_steal(p_lock_name, p_claim_id, p_holder_id, p_ttl, p_metadata, p_relaxed, p_up_to) AS s;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_renew(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
DECLARE
  v_patience FLOAT8;
  v_answers  BOOLEAN[];
  v_each     RECORD;
  v_until    TIMESTAMPTZ;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  IF cardinality(p_names) = 1 THEN
    v_answers := %1$I.holdfast_renew(
      p_names, p_claims, p_tokens, p_ttls, p_relaxed, CASE WHEN p_ttls[1] < 10000 THEN greatest(1, p_ttls[1] / 10) END);
  ELSE
    BEGIN
      v_answers := %1$I.holdfast_renew(
        p_names, p_claims, p_tokens, p_ttls, p_relaxed, greatest(1, least(50, p_ttls[1] / 10)));
    EXCEPTION WHEN lock_not_available THEN
      -- A name's row was not locked, but a row of its shared leases was. So the leases are renewed one by one.
      v_answers := array_fill(NULL::boolean, ARRAY[cardinality(p_names)]);
    END;
  END IF;
  IF array_position(v_answers, NULL) IS NOT NULL THEN
    CALL %1$I.holdfast_begin();
    v_patience := least(1000, (SELECT min(ttl) FROM unnest(p_ttls) AS ttl) / 10);
    v_until := clock_timestamp() + v_patience * interval '1 ms';
    FOR v_each IN
      SELECT * FROM unnest(p_names, p_claims, p_tokens, p_ttls, v_answers)
        WITH ORDINALITY AS c (lock_name, claim_id, token, ttl, answer, ord)
      WHERE answer IS NULL ORDER BY lock_name COLLATE "C", ord
    LOOP
      EXIT WHEN clock_timestamp() > v_until + interval '1 s';
      BEGIN
        v_answers[v_each.ord] := (%1$I.holdfast_renew(
          ARRAY[v_each.lock_name], ARRAY[v_each.claim_id], ARRAY[v_each.token], ARRAY[v_each.ttl], p_relaxed,
          %1$I.holdfast_patience(v_patience / 4, v_until)))[1];
      EXCEPTION WHEN lock_not_available THEN
        NULL;  -- The lease stays not known.
      END;
    END LOOP;
  END IF;
  answers := v_answers::text;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_release(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
DECLARE
  v_answers BOOLEAN[];
  v_each    RECORD;
  v_until   TIMESTAMPTZ;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    CALL %1$I.holdfast_begin();
  END IF;
  IF cardinality(p_names) = 1 THEN
    v_answers := %1$I.holdfast_release(p_names, p_claims, p_tokens, p_relaxed);
  ELSE
    BEGIN
      v_answers := %1$I.holdfast_release(p_names, p_claims, p_tokens, p_relaxed, 50);
    EXCEPTION WHEN lock_not_available THEN
      -- As for renewals. The locked row is mostly the place of the next waiter.
      v_answers := array_fill(NULL::boolean, ARRAY[cardinality(p_names)]);
    END;
  END IF;
  IF array_position(v_answers, NULL) IS NOT NULL THEN
    CALL %1$I.holdfast_begin();
    v_until := clock_timestamp() + interval '250 ms';
    FOR v_each IN
      SELECT * FROM unnest(p_names, p_claims, p_tokens, v_answers)
        WITH ORDINALITY AS c (lock_name, claim_id, token, answer, ord)
      WHERE answer IS NULL ORDER BY lock_name COLLATE "C", ord
    LOOP
      EXIT WHEN clock_timestamp() > v_until + interval '1 s';
      BEGIN
        v_answers[v_each.ord] := (%1$I.holdfast_release(
          ARRAY[v_each.lock_name], ARRAY[v_each.claim_id], ARRAY[v_each.token], p_relaxed,
          %1$I.holdfast_patience(50, v_until)))[1];
      EXCEPTION WHEN lock_not_available THEN
        NULL;  -- The lease stays not known.
      END;
    END LOOP;
  END IF;
  answers := v_answers::text;
END
$$;
$sql$, current_schema());
END
$do$;

-- holdfast_call_consume
-- Inputs, outputs, codes: as above. A ROLLBACK of the caller would give back units that it has already used.
DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_consume(
  p_names TEXT[], p_counts INTEGER[], p_chosen INTEGER[], p_policies FLOAT8[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  answers := %1$I.holdfast_consume(p_names, p_counts, p_chosen, p_policies, p_relaxed)::text;
END
$$;
$sql$, current_schema());
END
$do$;

INSERT INTO holdfast_migrations (version) VALUES (11) ON CONFLICT DO NOTHING;
