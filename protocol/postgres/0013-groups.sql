-- Migration 13: claims that are granted all or none, by a procedure that a client calls, like those of 0011-calls.sql.
--
-- holdfast_call_acquire_groups
-- Inputs:  for each claim: lock name, claim id, group id, holder id, time to live in ms, metadata as JSON text (NULL:
--          none); for all: relaxed as in holdfast_acquire; NULL for each output. All claims are exclusive, and none of
--          them waits. The claims of a group are next to each other, each on a name of its own
-- Outputs: granted_claims, granted_tokens, granted_at, refused_at, holders
--                          as in holdfast_acquire, arrays and JSON as text. Of a group all claims are granted or none
--          refused_claims  claims on names that others hold or wait for
--          not_known       all claims of a group if another transaction keeps one of its rows locked; and of a refused
--                          group the claims that have a lease of an earlier call, which the client must release
--          A claim in none of these lists is on a free name. It was refused because another of its group was
-- Codes:   2D000  called inside a transaction that the caller has begun; nothing was done
--
-- No other client ever sees a part of a group. First all groups are checked without a lock: if a name is held, its
-- group is refused, and nothing is written for it. The other groups are claimed in one list and one transaction. If any
-- of that list is not granted, the transaction is rolled back, and each group gets a transaction of its own, which is
-- rolled back unless all of the group is granted. Tokens that a rollback discards are only skipped.
-- A group with a transaction of its own waits for rows that others have locked: 250 ms in all, and where there are
-- several such groups, 50 ms for each row. It locks its rows in one order, byte by byte, before it claims any of them.
-- Lists wait in the same order, so neither deadlocks with the other.
--
-- Deliberate copy: the choice of the holder to name, in holdfast_look_at_groups, repeats the one in holdfast_ask
-- (0004-leases.sql). It lets a group be refused without a lock, a token or a write, which holdfast_ask cannot do.
-- test/drivers/postgres/equal-paths.test.ts keeps the two equal.

-- Finds what prevents each group from being granted, judged by what is visible without a lock.
-- Inputs:  for each claim: lock name, claim id, group id
-- Outputs: refused_groups
--          refused_claims  claims on names that others hold or wait for
--          own_claims      claims that already have their lease
--          holders         as in holdfast_acquire
CREATE OR REPLACE FUNCTION holdfast_look_at_groups(
  p_names TEXT[], p_claims TEXT[], p_groups TEXT[],
  OUT refused_groups TEXT[], OUT refused_claims TEXT[], OUT own_claims TEXT[], OUT holders JSONB
)
LANGUAGE plpgsql SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v_now   CONSTANT TIMESTAMPTZ := clock_timestamp();
  v_each  RECORD;
  v_row   distributed_locks;
  v_claim holdfast_waiters;
  v_seen  JSONB;
BEGIN
  v_claim.mode := 'exclusive';
  FOR v_each IN
    SELECT c.claim_id, c.group_id, d.found
    FROM unnest(p_names, p_claims, p_groups) AS c (lock_name, claim_id, group_id), LATERAL (
      SELECT d AS found FROM distributed_locks d WHERE d.lock_name = c.lock_name OFFSET 0
    ) AS d
  LOOP
    v_row := v_each.found;
    v_claim.lock_name := v_row.lock_name;
    v_claim.claim_id := v_each.claim_id;
    IF v_row.mode = 'exclusive' AND v_row.claim_id = v_each.claim_id AND v_row.expires_at > v_now THEN
      own_claims := own_claims || v_each.claim_id;
    ELSIF holdfast_is_refused(v_row, v_claim) THEN
      refused_groups := refused_groups || v_each.group_id;
      refused_claims := refused_claims || v_each.claim_id;
      v_seen := NULL;
      IF v_row.mode = 'shared' THEN
        SELECT holdfast_lease_json(l) INTO v_seen FROM holdfast_leases l
        WHERE l.lock_name = v_row.lock_name AND l.expires_at > v_now LIMIT 1;
      ELSIF v_row.expires_at > v_now THEN
        v_seen := holdfast_lease_json(v_row);
      END IF;
      IF v_seen IS NOT NULL THEN
        holders := coalesce(holders, '{}') || jsonb_build_object(v_row.lock_name, v_seen);
      END IF;
    END IF;
  END LOOP;
END
$$;

-- Locks the rows of these names FOR UPDATE, in one order, byte by byte. A free name gets a row that has already ended.
-- It is granted in this transaction, or rolled back with it.
-- Inputs:  lock names; how long to wait for each row in ms, and until when for all of them
-- Codes:   55P03  another transaction keeps one of the rows locked
CREATE OR REPLACE FUNCTION holdfast_lock_names(p_names TEXT[], p_each FLOAT8, p_until TIMESTAMPTZ) RETURNS VOID
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '50ms' AS $$
DECLARE
  v_name TEXT;
  v_row  distributed_locks;
BEGIN
  FOR v_name IN SELECT name FROM unnest(p_names) AS name ORDER BY name COLLATE "C" LOOP
    PERFORM set_config('lock_timeout', holdfast_patience(p_each, p_until)::integer::text, true);
    v_row := holdfast_lock(v_name, 'change', true);
    IF v_row.lock_name IS NULL THEN
      INSERT INTO distributed_locks AS d (lock_name, holder_id, acquired_at, expires_at)
      VALUES (v_name, '', clock_timestamp(), clock_timestamp())
      ON CONFLICT (lock_name) DO UPDATE SET holder_id = d.holder_id;
      PERFORM holdfast_lock(v_name, 'change', true);
    END IF;
  END LOOP;
END
$$;

-- Claims all names of some groups, in one list.
-- Inputs:  for each claim, as holdfast_call_acquire_groups; for all: p_wanted, the groups to claim; relaxed; how long
--          to wait for their rows, as holdfast_lock_names takes it (NULL: do not lock them first)
-- Outputs: granted, whether all of them were granted. If not, the caller rolls back. The others as in holdfast_acquire
-- Codes:   55P03  as holdfast_acquire
CREATE OR REPLACE FUNCTION holdfast_acquire_groups(
  p_names TEXT[], p_claims TEXT[], p_groups TEXT[], p_holders TEXT[], p_ttls FLOAT8[], p_metadata TEXT[],
  p_wanted TEXT[], p_relaxed BOOLEAN, p_each FLOAT8, p_until TIMESTAMPTZ,
  OUT granted BOOLEAN, OUT granted_claims TEXT[], OUT granted_tokens BIGINT[], OUT granted_at FLOAT8[],
  OUT refused_claims TEXT[], OUT holders JSONB, OUT not_known TEXT[]
)
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_some RECORD;
BEGIN
  SELECT array_agg(lock_name ORDER BY ord) AS names, array_agg(claim_id ORDER BY ord) AS claims,
    array_agg(holder_id ORDER BY ord) AS holders, array_agg(ttl ORDER BY ord) AS ttls,
    array_agg(metadata ORDER BY ord) AS metadata, array_agg(false) AS shared, array_agg(NULL::bigint) AS limits,
    array_agg(1::bigint) AS permits, array_agg(0::float8) AS waits INTO v_some
  FROM unnest(p_names, p_claims, p_groups, p_holders, p_ttls, p_metadata)
    WITH ORDINALITY AS c (lock_name, claim_id, group_id, holder_id, ttl, metadata, ord)
  WHERE group_id = ANY (p_wanted);
  IF p_each IS NOT NULL THEN
    PERFORM holdfast_lock_names(v_some.names, p_each, p_until);
  END IF;
  SELECT a.granted_claims, a.granted_tokens, a.granted_at, a.refused_claims, a.holders, a.not_known
  INTO granted_claims, granted_tokens, granted_at, refused_claims, holders, not_known
  FROM holdfast_acquire(v_some.names, v_some.claims, v_some.holders, v_some.shared, v_some.limits, v_some.permits,
    v_some.ttls, v_some.waits, v_some.metadata, '', p_relaxed, 50) AS a;
  granted := coalesce(cardinality(granted_claims) = cardinality(v_some.claims), false);
END
$$;

-- As in 0011-calls.sql, the text of the procedure contains the schema's name.
DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_acquire_groups(
  p_names TEXT[], p_claims TEXT[], p_groups TEXT[], p_holders TEXT[], p_ttls FLOAT8[], p_metadata TEXT[],
  p_relaxed BOOLEAN,
  INOUT granted_claims TEXT, INOUT granted_tokens TEXT, INOUT granted_at TEXT,
  INOUT refused_claims TEXT, INOUT refused_at TEXT, INOUT holders TEXT, INOUT not_known TEXT
)
LANGUAGE plpgsql AS $$
DECLARE
  v_look      RECORD;
  v_got       RECORD;
  v_done      BOOLEAN;
  v_groups    TEXT[];    -- the groups that the check has not refused, in their order
  v_group     TEXT;
  v_own       TEXT[];    -- the claims of one group
  v_until     TIMESTAMPTZ;
  v_granted   TEXT[];
  v_tokens    BIGINT[];
  v_at        FLOAT8[];
  v_refused   TEXT[];
  v_holders   JSONB;
  v_not_known TEXT[];
BEGIN
  CALL %1$I.holdfast_begin();
  refused_at := (extract(epoch FROM clock_timestamp()) * 1000)::float8::text;
  v_look := %1$I.holdfast_look_at_groups(p_names, p_claims, p_groups);
  v_refused := v_look.refused_claims;
  v_holders := v_look.holders;
  IF v_look.refused_groups IS NOT NULL AND v_look.own_claims IS NOT NULL THEN
    SELECT array_agg(claim_id) INTO v_not_known FROM unnest(p_claims, p_groups) AS c (claim_id, group_id)
    WHERE group_id = ANY (v_look.refused_groups) AND claim_id = ANY (v_look.own_claims);
  END IF;
  SELECT array_agg(group_id ORDER BY first) INTO v_groups FROM (
    SELECT group_id, min(ord) AS first FROM unnest(p_groups) WITH ORDINALITY AS g (group_id, ord) GROUP BY group_id
  ) AS g WHERE group_id <> ALL (coalesce(v_look.refused_groups, '{}'));

  -- A record has no columns until it is assigned, and the first attempt may fail before it assigns one.
  SELECT false AS granted, NULL::text[] AS granted_claims, NULL::bigint[] AS granted_tokens,
    NULL::float8[] AS granted_at, NULL::text[] AS refused_claims, NULL::jsonb AS holders, NULL::text[] AS not_known
  INTO v_got;
  IF v_groups IS NOT NULL THEN
    BEGIN
      SELECT * INTO v_got FROM %1$I.holdfast_acquire_groups(
        p_names, p_claims, p_groups, p_holders, p_ttls, p_metadata, v_groups, p_relaxed, NULL, NULL);
      v_done := v_got.granted;
    EXCEPTION WHEN lock_not_available THEN
      v_done := false;
    END;
    IF v_done THEN
      v_granted := v_got.granted_claims;
      v_tokens := v_got.granted_tokens;
      v_at := v_got.granted_at;
      v_groups := NULL;
    ELSE
      ROLLBACK;
    END IF;
  END IF;

  v_until := clock_timestamp() + interval '250 ms';
  FOREACH v_group IN ARRAY coalesce(v_groups, '{}') LOOP
    CALL %1$I.holdfast_begin();
    SELECT array_agg(claim_id) INTO v_own FROM unnest(p_claims, p_groups) AS c (claim_id, group_id)
    WHERE group_id = v_group;
    SELECT look.* INTO v_look FROM (
      SELECT array_agg(lock_name) AS names, array_agg(claim_id) AS claims, array_agg(group_id) AS groups
      FROM unnest(p_names, p_claims, p_groups) AS c (lock_name, claim_id, group_id) WHERE group_id = v_group
    ) AS own, LATERAL %1$I.holdfast_look_at_groups(own.names, own.claims, own.groups) AS look;
    IF v_look.refused_claims IS NULL AND clock_timestamp() <= v_until + interval '1 s' THEN
      BEGIN
        SELECT * INTO v_got FROM %1$I.holdfast_acquire_groups(
          p_names, p_claims, p_groups, p_holders, p_ttls, p_metadata, ARRAY[v_group], p_relaxed,
          CASE WHEN cardinality(v_groups) > 1 THEN 50 ELSE 250 END, v_until);
        v_done := true;
      EXCEPTION WHEN lock_not_available THEN
        v_done := false;
      END;
      IF v_done AND v_got.granted THEN
        COMMIT;
        v_granted := v_granted || v_got.granted_claims;
        v_tokens := v_tokens || v_got.granted_tokens;
        v_at := v_at || v_got.granted_at;
        CONTINUE;
      END IF;
      ROLLBACK;
      IF v_done AND v_got.not_known IS NULL THEN
        v_look.refused_claims := v_got.refused_claims;
        v_look.holders := v_got.holders;
      END IF;
    END IF;
    IF v_look.refused_claims IS NULL THEN
      v_not_known := v_not_known || v_own;
    ELSE
      v_refused := v_refused || v_look.refused_claims;
      v_not_known := v_not_known || v_look.own_claims;
      v_holders := coalesce(v_holders || v_look.holders, v_holders, v_look.holders);
    END IF;
  END LOOP;
  granted_claims := v_granted::text;
  granted_tokens := v_tokens::text;
  granted_at := v_at::text;
  refused_claims := v_refused::text;
  holders := v_holders::text;
  not_known := v_not_known::text;
END
$$;
$sql$, current_schema());
END
$do$;

INSERT INTO holdfast_migrations (version) VALUES (13) ON CONFLICT DO NOTHING;
