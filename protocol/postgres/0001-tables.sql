-- Migration 1: the tables.
--
-- Inputs:  the first schema of search_path, in which everything is created. If you run this file by hand, set it first
-- Outputs: holdfast_migrations, distributed_locks, holdfast_leases, holdfast_waiters
-- This file is safe to run again. It is also safe on a database that already has the plain five-column table: its rows
-- stay as they are.
-- Objects that exist are not altered. Even an ALTER or a CREATE INDEX with IF NOT EXISTS locks its table. It waits for
-- every transaction that has read the table, while all other clients queue behind it.
--
-- All times are the server's clock_timestamp(). They are never now(), which is the start of the transaction, and never
-- a client's time. A row whose expires_at has passed has ended, even if it has not been deleted yet.

-- Drops functions of an earlier version whose inputs or outputs have changed since. CREATE OR REPLACE would fail on
-- them, or would leave them beside the new ones. The files after this one create them again.
DO $$
DECLARE
  v_old REGPROCEDURE;
BEGIN
  FOR v_old IN
    SELECT p.oid FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND p.proname = ANY (ARRAY[
      'holdfast_acquire', 'holdfast_admit', 'holdfast_ask', 'holdfast_call_acquire', 'holdfast_consume',
      'holdfast_end', 'holdfast_first', 'holdfast_granted', 'holdfast_line_up', 'holdfast_lock_rows',
      'holdfast_raise_tokens', 'holdfast_rate_step', 'holdfast_release', 'holdfast_renew', 'holdfast_set_durability',
      'holdfast_stand'])
  LOOP
    EXECUTE 'DROP ROUTINE ' || v_old;
  END LOOP;
END
$$;

-- The files that have been run in this schema.
CREATE TABLE IF NOT EXISTS holdfast_migrations (
  version    INTEGER     PRIMARY KEY,
  applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- One row for each lock name that is held or waited for. The first five columns are the plain format. A client that
-- uses only these, through acquire_lock and release_lock, excludes Holdfast and is excluded by it.
-- Text is compared byte by byte (COLLATE "C").
CREATE TABLE IF NOT EXISTS distributed_locks (
  lock_name   VARCHAR(255) COLLATE "C" PRIMARY KEY,
  holder_id   VARCHAR(255) NOT NULL,
  acquired_at TIMESTAMPTZ  NOT NULL,
  expires_at  TIMESTAMPTZ  NOT NULL,
  metadata    JSONB
);

-- claim_id       the acquisition that holds the lock exclusively. NULL: the row belongs to a plain client
-- fencing_token  the token of that lease
-- mode           'exclusive': this row is the lease. 'shared': the leases are in holdfast_leases, and this row
--                represents all of them
-- lasts          the lease's duration, counted from its grant or last renewal. An end that is farther away than that
--                was written before the clock was set back. NULL: not known
-- contended      there are waiters, or the leases are shared. A change of this name must then read the other tables,
--                too. Without it, the row alone decides, so the common case is one statement
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'distributed_locks'::regclass AND attname = 'lasts') THEN
    ALTER TABLE distributed_locks
      ADD COLUMN IF NOT EXISTS claim_id      TEXT,
      ADD COLUMN IF NOT EXISTS fencing_token BIGINT,
      ADD COLUMN IF NOT EXISTS mode          TEXT    NOT NULL DEFAULT 'exclusive',
      ADD COLUMN IF NOT EXISTS contended     BOOLEAN NOT NULL DEFAULT false,
      ADD COLUMN IF NOT EXISTS lasts         INTERVAL;
  END IF;
  -- An earlier version may have created the index under another name.
  IF NOT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'distributed_locks'::regclass AND a.attname = 'expires_at' AND i.indpred IS NULL
  ) THEN
    CREATE INDEX distributed_locks_expires_at ON distributed_locks (expires_at);
  END IF;
END
$$;

-- Shared leases. They count only while the row of their name says 'shared'. A change of them locks that row and writes
-- it. lasts is as above. Rows of a version without this column get the longest possible time to live.
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
  lasts         INTERVAL     NOT NULL DEFAULT '8760 hours',
  PRIMARY KEY (lock_name, claim_id)
);
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'holdfast_leases'::regclass AND attname = 'lasts') THEN
    ALTER TABLE holdfast_leases ADD COLUMN lasts INTERVAL NOT NULL DEFAULT '8760 hours';
  END IF;
  IF to_regclass('holdfast_leases_expires_at') IS NULL THEN
    CREATE INDEX holdfast_leases_expires_at ON holdfast_leases (expires_at);
  END IF;
END
$$;

-- The queue. place is the order of arrival. A waiter that has not renewed its place by expires_at is skipped.
-- channel is where its process listens, a colon, and a random text that is new with every call of the claim: it ties a
-- notification to the call. time_to_live and metadata become those of its lease.
-- lasts is how long a place lasts after it was last renewed, as above.
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
  lasts         INTERVAL     NOT NULL DEFAULT '8760 hours',
  PRIMARY KEY (lock_name, place),
  UNIQUE (lock_name, claim_id)
);
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'holdfast_waiters'::regclass AND attname = 'lasts') THEN
    ALTER TABLE holdfast_waiters ADD COLUMN lasts INTERVAL NOT NULL DEFAULT '8760 hours';
  END IF;
  IF to_regclass('holdfast_waiters_expires_at') IS NULL THEN
    CREATE INDEX holdfast_waiters_expires_at ON holdfast_waiters (expires_at);
  END IF;
END
$$;
CREATE SEQUENCE IF NOT EXISTS holdfast_places;

INSERT INTO holdfast_migrations (version) VALUES (1) ON CONFLICT DO NOTHING;
