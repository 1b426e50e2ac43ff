-- Migration 1: the tables.
--
-- Inputs:  the schema to work in is the first one of search_path; whoever runs this file by hand sets it before.
-- Outputs: holdfast_migrations, distributed_locks, holdfast_leases, holdfast_waiters
-- Safe to run again, and on a database that has the plain five-column table already, with rows in it: they stay as they are.
-- What is there already is not touched: even an ALTER or CREATE INDEX with IF NOT EXISTS locks its table, and waits for every transaction that has only read
-- it, while all other clients queue behind it.
--
-- All times are the server's clock_timestamp(), never now(), which is the start of somebody's transaction, and never a client's.
-- A row whose expires_at has passed has ended, whether or not it has been deleted yet.

-- Functions of an earlier version whose inputs or outputs have changed since, which CREATE OR REPLACE does not allow, or would leave beside the new ones.
-- The files after this one make them anew.
DO $$
DECLARE
  v_old REGPROCEDURE;
BEGIN
  FOR v_old IN
    SELECT p.oid FROM pg_proc p
    WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND p.proname = ANY (ARRAY[
      'holdfast_acquire', 'holdfast_admit', 'holdfast_ask', 'holdfast_call_acquire', 'holdfast_consume',
      'holdfast_end', 'holdfast_first', 'holdfast_line_up', 'holdfast_lock_rows', 'holdfast_raise_tokens',
      'holdfast_rate_step', 'holdfast_release', 'holdfast_renew', 'holdfast_set_durability', 'holdfast_stand'])
  LOOP
    EXECUTE 'DROP ROUTINE ' || v_old;
  END LOOP;
END
$$;

-- Which of these files have been run here.
CREATE TABLE IF NOT EXISTS holdfast_migrations (
  version    INTEGER     PRIMARY KEY,
  applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- One row for each lock name that is held or waited for. The first five columns are the plain format: who reads or writes just them, through
-- acquire_lock and release_lock, excludes Holdfast and is excluded by it. Text is compared byte by byte (COLLATE "C").
CREATE TABLE IF NOT EXISTS distributed_locks (
  lock_name   VARCHAR(255) COLLATE "C" PRIMARY KEY,
  holder_id   VARCHAR(255) NOT NULL,
  acquired_at TIMESTAMPTZ  NOT NULL,
  expires_at  TIMESTAMPTZ  NOT NULL,
  metadata    JSONB
);

-- claim_id       the acquisition that holds it exclusively; NULL for a row of a plain client
-- fencing_token  of that lease
-- mode           'exclusive': this row is the lease. 'shared': the leases are in holdfast_leases, and this row stands for all of them
-- lasts          how long that lease lasts from when it was heard of: an end that is farther away was
--                written before the clock was set back. NULL: not known
-- contended      somebody waits, or the leases are shared: what changes this name has to look at the other tables as well.
--                A row without it is decided by itself alone, which is what makes the usual case one statement.
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
  -- Under whichever name it was made before.
  IF NOT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'distributed_locks'::regclass AND a.attname = 'expires_at' AND i.indpred IS NULL
  ) THEN
    CREATE INDEX distributed_locks_expires_at ON distributed_locks (expires_at);
  END IF;
END
$$;

-- Shared leases. They count only while the row of their name says 'shared'; whoever changes them holds that row's lock and writes that row.
-- lasts is as above; in rows of a version without this column, the longest time to live that there is.
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

-- The queue. place is the order of arrival; a waiter that is not heard of until expires_at is passed over.
-- channel is where its process listens; time_to_live and metadata are what its lease will have.
-- lasts is how long its place lasts from when it was heard of, as above.
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
