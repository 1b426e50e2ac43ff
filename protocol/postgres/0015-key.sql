-- Migration 15: the key of the proofs in notifications, see holdfast_tell in 0003-queue.sql.
--
-- holdfast_keys
-- One row with a random text. A role that may read all tables must not be able to forge a notification. So a row is
-- visible only to roles that may also insert locks: these can take any lock anyway.
--
-- holdfast_key()
-- Outputs: the key; NULL if this role may not read it
--
-- holdfast_listen_key()
-- Outputs: the key, which is created if the table was emptied
-- Codes:   42501  this role may not read it
CREATE TABLE IF NOT EXISTS holdfast_keys (
  id  INTEGER PRIMARY KEY,
  key TEXT    NOT NULL
);
DO $$
BEGIN
  IF NOT (SELECT relrowsecurity FROM pg_class WHERE oid = 'holdfast_keys'::regclass) THEN
    ALTER TABLE holdfast_keys ENABLE ROW LEVEL SECURITY;
  END IF;
  -- It goes away with distributed_locks.
  IF NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = 'holdfast_keys'::regclass) THEN
    CREATE POLICY holdfast_clients ON holdfast_keys
      USING (has_table_privilege('distributed_locks'::regclass, 'INSERT'));
  END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_key() RETURNS TEXT
LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF has_table_privilege('holdfast_keys', 'SELECT') THEN
    RETURN (SELECT key FROM holdfast_keys WHERE id = 1);
  END IF;
  RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION holdfast_listen_key() RETURNS TEXT
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  v_key TEXT := (SELECT key FROM holdfast_keys WHERE id = 1);
BEGIN
  IF v_key IS NULL THEN
    INSERT INTO holdfast_keys VALUES (1, replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''))
    ON CONFLICT DO NOTHING;
    v_key := (SELECT key FROM holdfast_keys WHERE id = 1);
  END IF;
  RETURN v_key;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (15) ON CONFLICT DO NOTHING;
