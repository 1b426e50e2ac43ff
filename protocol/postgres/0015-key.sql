-- Migration 15: the key of the proofs in notifications, see holdfast_tell in 0003-queue.sql.
--
-- holdfast_key_1, holdfast_key_2
-- Sequences whose values are random. They are never advanced. A role that may read all tables must not be able to forge
-- a notification, and a right to tables does not include sequences. (Row-level security of a table would hide the key
-- as well. But pg_dump fails on such a table, unless the role that runs it owns the table or bypasses that security.)
--
-- holdfast_key()
-- Outputs: the key; NULL if this role may not read it. It never fails for that: a notification must not cost a release
CREATE SEQUENCE IF NOT EXISTS holdfast_key_1;
CREATE SEQUENCE IF NOT EXISTS holdfast_key_2;
DO $$
DECLARE
  v_random CONSTANT TEXT := encode(sha256(convert_to(gen_random_uuid()::text || gen_random_uuid(), 'UTF8')), 'hex');
BEGIN
  IF pg_sequence_last_value('holdfast_key_1') IS NULL THEN
    PERFORM setval('holdfast_key_1', ('x' || left(v_random, 16))::bit(64)::bigint & 9223372036854775807 | 1);
    PERFORM setval('holdfast_key_2', ('x' || right(v_random, 16))::bit(64)::bigint & 9223372036854775807 | 1);
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_key() RETURNS TEXT
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
  IF has_sequence_privilege('holdfast_key_1', 'SELECT') AND has_sequence_privilege('holdfast_key_2', 'SELECT') THEN
    RETURN pg_sequence_last_value('holdfast_key_1') || '.' || pg_sequence_last_value('holdfast_key_2');
  END IF;
  RETURN NULL;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (15) ON CONFLICT DO NOTHING;
