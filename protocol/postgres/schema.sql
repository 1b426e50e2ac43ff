-- The tables of the PostgreSQL table driver, version 1 of the stored format. functions.sql has everything that changes
-- them, and fence.sql the fencing guard.
--
-- Inputs:  the first schema of search_path, in which everything is created
-- Outputs: the tables, indexes and sequences below
-- Codes:   55000  the schema has a newer version of these tables
-- Safe to run again, and on a database that has the plain table of five columns: its rows stay as they are. What exists
-- is not altered: even an ALTER or a CREATE INDEX with IF NOT EXISTS locks its table. It would wait for every
-- transaction that has read the table, while all other clients queue behind it.
--
-- All times are the server's clock_timestamp(). They are never now(), which is the start of the transaction, and never
-- a client's time. A row whose expires_at has passed has ended, even if it has not been deleted yet.
-- Durations are in milliseconds, never intervals: a day of an interval has 23 hours when the clocks change in spring.
--
-- Every look-up of one row can use a single index. So no plan depends on the planner's statistics, which are old, empty
-- or wrong just when a queue is long. An index on the expires_at of holdfast_waiters would be used by look-ups of a
-- claim, too, and each would read the entire queue.

-- Which version of this file and of functions.sql was run last. A client that needs a higher one runs both files. A
-- client that knows only a lower one goes on: what a call means does not change without a new name for its procedure.
CREATE TABLE IF NOT EXISTS holdfast_format (
  id      INTEGER PRIMARY KEY CHECK (id = 1),
  version INTEGER NOT NULL
);
DO $$
BEGIN
  IF EXISTS (SELECT FROM holdfast_format WHERE version > 1) THEN
    RAISE EXCEPTION 'the tables have version %, and this script would bring them back to version 1',
      (SELECT version FROM holdfast_format) USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
END
$$;
INSERT INTO holdfast_format (id, version) VALUES (1, 1) ON CONFLICT (id) DO NOTHING;

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

-- claim_id       the acquisition that holds the lock exclusively; 'plain:' and the holder id if it was acquire_lock.
--                NULL: the row was written by a client that knows only the plain columns
-- fencing_token  the token of that lease
-- mode           'exclusive': this row is the lease. 'shared': the leases are in holdfast_leases, and this row
--                represents all of them
-- ttl_ms         the lease's duration, counted from its grant or last renewal. An end that is farther away than that
--                was written before the clock was set back
-- contended      there are waiters, or the leases are shared. A change of this name must then read the other tables,
--                too. Without it, the row alone decides, so the common case is one statement
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'distributed_locks'::regclass AND attname = 'ttl_ms') THEN
    ALTER TABLE distributed_locks
      ADD COLUMN claim_id      TEXT,
      ADD COLUMN fencing_token BIGINT,
      ADD COLUMN mode          TEXT    NOT NULL DEFAULT 'exclusive',
      ADD COLUMN contended     BOOLEAN NOT NULL DEFAULT false,
      ADD COLUMN ttl_ms        FLOAT8;
  END IF;
  -- The table that a team already has may have the index under another name.
  IF NOT EXISTS (
    SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = 'distributed_locks'::regclass AND a.attname = 'expires_at' AND i.indpred IS NULL
  ) THEN
    CREATE INDEX distributed_locks_expires_at ON distributed_locks (expires_at);
  END IF;
END
$$;

-- Shared leases. They count only while the row of their name says 'shared'. A change of them locks that row and writes
-- it. ttl_ms is as above.
CREATE TABLE IF NOT EXISTS holdfast_leases (
  lock_name     VARCHAR(255) COLLATE "C" NOT NULL,
  claim_id      TEXT         NOT NULL,
  holder_id     VARCHAR(255) NOT NULL,
  max_permits   BIGINT,
  permits       BIGINT       NOT NULL,
  fencing_token BIGINT       NOT NULL,
  acquired_at   TIMESTAMPTZ  NOT NULL,
  expires_at    TIMESTAMPTZ  NOT NULL,
  ttl_ms        FLOAT8       NOT NULL,
  metadata      JSONB,
  PRIMARY KEY (lock_name, claim_id)
);

-- The queue. place is the order of arrival. A waiter that has not renewed its place by expires_at is skipped.
-- ttl_ms and metadata become those of its lease. wait_ms is how long a place lasts after it was last renewed.
-- channel is where its process listens, a colon, and a random text that is new with every call of the claim: it ties a
-- notification to the call. `:polls` behind it says that the process does not listen now.
-- A look-up by name cannot use the second index, and one by claim, written as `lock_name || '' =`, not the first.
CREATE TABLE IF NOT EXISTS holdfast_waiters (
  lock_name     VARCHAR(255) COLLATE "C" NOT NULL,
  place         BIGINT       NOT NULL,
  claim_id      TEXT         NOT NULL,
  holder_id     VARCHAR(255) NOT NULL,
  mode          TEXT         NOT NULL,
  max_permits   BIGINT,
  permits       BIGINT       NOT NULL,
  ttl_ms        FLOAT8       NOT NULL,
  wait_ms       FLOAT8       NOT NULL,
  metadata      JSONB,
  channel       TEXT         NOT NULL,
  waiting_since TIMESTAMPTZ  NOT NULL,
  expires_at    TIMESTAMPTZ  NOT NULL,
  PRIMARY KEY (lock_name, place)
);
DO $$
BEGIN
  IF to_regclass('holdfast_waiters_claim') IS NULL THEN
    CREATE UNIQUE INDEX holdfast_waiters_claim ON holdfast_waiters (claim_id, (lock_name || ''));
  END IF;
END
$$;
CREATE SEQUENCE IF NOT EXISTS holdfast_places;

-- The last fencing token, and the run of the server in which it was last raised above the clock. The run is a sequence
-- because a write to a sequence is visible at once and survives a ROLLBACK.
CREATE SEQUENCE IF NOT EXISTS holdfast_tokens AS BIGINT;
CREATE SEQUENCE IF NOT EXISTS holdfast_raised AS BIGINT;

-- The key of the proofs in notifications: sequences whose values are random and never advance. A role that may read all
-- tables must not be able to forge a notification, and a right to tables does not include sequences. (Row-level
-- security of a table would hide the key as well. But pg_dump fails on such a table, unless the role that runs it owns
-- the table or bypasses that security.)
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

-- The leases that were ended by force, the last 1,000 of them.
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

-- Rate limits, one row for each name. The elements of state are, in this order:
--   how often the last step was taken (-1 and below: refused, see holdfast_take_rate_step)
--   the latest of all moments and ends of blocks (ms)
--   the number of limits
--   for each limit the three numbers of its id: the limit, its period in whole microseconds, its burst
--   for each limit its moment (ms): when it will be as if nothing had been taken
--   only while one of them is blocked: for each limit the end of its block (ms; 0: not blocked), then for each limit
--     the length of its block in ms
-- The limits of the last step come first, in their order. The others are limits that were used with the same name and
-- have not run out.
-- policy is that of the last step: a statement that inserts or updates has no other way to pass it to the row.
CREATE TABLE IF NOT EXISTS holdfast_rates (
  name       TEXT COLLATE "C" PRIMARY KEY,
  state      FLOAT8[]    NOT NULL,
  policy     INTEGER     NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 70);
DO $$
BEGIN
  IF to_regclass('holdfast_rates_expires_at') IS NULL THEN
    CREATE INDEX holdfast_rates_expires_at ON holdfast_rates (expires_at);
  END IF;
END
$$;
