-- Migration 11: what a client sends. Procedures that run the functions of the migrations before this one, each in a transaction of its own.
--
-- holdfast_call_acquire, holdfast_call_steal, holdfast_call_renew, holdfast_call_release
-- Inputs:  as the functions without _call; NULL in the place of each output
-- Outputs: as the functions without _call, arrays and JSON as text, so that every client reads them in the same way
-- Codes:   2D000  called inside a transaction that was begun by others; nothing was done
--
-- A grant, a renewal or a release inside somebody's open transaction would be undone by its ROLLBACK, after the client was told of it: two
-- holders. So each procedure begins with a COMMIT. By itself it ends a transaction that has done nothing yet; inside a transaction block
-- PostgreSQL refuses it. (Time stamps do not tell the two apart: in the extended protocol a transaction begins with Parse or Bind, and its statement
-- with Execute.)
--
-- A procedure with a SET clause cannot COMMIT, so the schema's name stands in the text, as %1$I.

-- The new transaction is READ COMMITTED, whatever the default is: with a snapshot taken too early, every concurrent change would be an error.
CREATE OR REPLACE PROCEDURE holdfast_begin()
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    COMMIT;
  ELSE
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
END
$$;

DO $do$
BEGIN
  EXECUTE format($sql$
CREATE OR REPLACE PROCEDURE holdfast_call_acquire(
  p_names TEXT[], p_claims TEXT[], p_holders TEXT[], p_shared BOOLEAN[], p_limits BIGINT[], p_permits BIGINT[],
  p_ttls FLOAT8[], p_waits FLOAT8[], p_metadata TEXT[], p_channel TEXT, p_relaxed BOOLEAN,
  INOUT granted_claims TEXT, INOUT granted_tokens TEXT, INOUT granted_at TEXT, INOUT refusals TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  SELECT a.granted_claims::text, a.granted_tokens::text, a.granted_at::text, a.refusals::text
  INTO granted_claims, granted_tokens, granted_at, refusals
  FROM %1$I.holdfast_acquire(
    p_names, p_claims, p_holders, p_shared, p_limits, p_permits, p_ttls, p_waits, p_metadata, p_channel, p_relaxed) AS a;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_steal(
  p_lock_name TEXT, p_claim_id TEXT, p_holder_id TEXT, p_ttl FLOAT8, p_metadata TEXT, p_relaxed BOOLEAN,
  INOUT fencing_token TEXT, INOUT granted_at TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  SELECT s.fencing_token::text, s.granted_at::text INTO fencing_token, granted_at
  FROM %1$I.holdfast_steal(p_lock_name, p_claim_id, p_holder_id, p_ttl, p_metadata, p_relaxed) AS s;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_renew(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_ttls FLOAT8[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  answers := %1$I.holdfast_renew(p_names, p_claims, p_tokens, p_ttls, p_relaxed)::text;
END
$$;

CREATE OR REPLACE PROCEDURE holdfast_call_release(
  p_names TEXT[], p_claims TEXT[], p_tokens BIGINT[], p_relaxed BOOLEAN, INOUT answers TEXT
)
LANGUAGE plpgsql AS $$
BEGIN
  CALL %1$I.holdfast_begin();
  answers := %1$I.holdfast_release(p_names, p_claims, p_tokens, p_relaxed)::text;
END
$$;
$sql$, current_schema());
END
$do$;

-- holdfast_call_consume
-- Inputs, outputs, codes: as above. A ROLLBACK would give units back that the client was told it has.
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
