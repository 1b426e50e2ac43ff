-- The stored format in SQLite, version 1. Safe to run again, and from many processes at once; in one transaction.
--
-- Inputs:  none
-- Outputs: the tables below
--
-- Touches nothing but tables that begin with holdfast_: it may run in a database that has tables, a user_version and an
-- application_id of its own.
--
-- All times are milliseconds of the machine's clock as SQLite reads it (julianday('now')), never sent by a client.
-- A row whose expires_at_ms has passed has ended, even if it has not been deleted yet. A row whose expires_at_ms is
-- more than ttl_ms or wait_ms ahead was written before the clock was set back: see holdfast_ahead.

-- Which version of this file created the tables. A client that finds another one than it knows must not go on.
CREATE TABLE IF NOT EXISTS holdfast_format (
  id      INTEGER PRIMARY KEY CHECK (id = 1),
  version INTEGER NOT NULL
);

INSERT OR IGNORE INTO holdfast_format (id, version) VALUES (1, 1);

CREATE TABLE IF NOT EXISTS holdfast_leases (
  lock_name      TEXT    NOT NULL,
  claim_id       TEXT    NOT NULL,
  holder_id      TEXT    NOT NULL,
  mode           TEXT    NOT NULL CHECK (mode IN ('exclusive', 'shared')),
  max_permits    INTEGER,
  permits        INTEGER NOT NULL,
  fencing_token  INTEGER NOT NULL,
  acquired_at_ms INTEGER NOT NULL,
  expires_at_ms  INTEGER NOT NULL,
  metadata       TEXT,
  -- The time to live of the grant or of the last renewal.
  ttl_ms         INTEGER NOT NULL,
  PRIMARY KEY (lock_name, claim_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS holdfast_leases_expires_at ON holdfast_leases (expires_at_ms);

-- The queue: place is the order of arrival.
CREATE TABLE IF NOT EXISTS holdfast_waiters (
  place            INTEGER PRIMARY KEY AUTOINCREMENT,
  lock_name        TEXT    NOT NULL,
  claim_id         TEXT    NOT NULL,
  holder_id        TEXT    NOT NULL,
  mode             TEXT    NOT NULL CHECK (mode IN ('exclusive', 'shared')),
  max_permits      INTEGER,
  permits          INTEGER NOT NULL,
  waiting_since_ms INTEGER NOT NULL,
  expires_at_ms    INTEGER NOT NULL,
  -- How long its place is kept unless it asks again.
  wait_ms          INTEGER NOT NULL,
  UNIQUE (lock_name, claim_id)
);

CREATE INDEX IF NOT EXISTS holdfast_waiters_queue ON holdfast_waiters (lock_name, place);
CREATE INDEX IF NOT EXISTS holdfast_waiters_expires_at ON holdfast_waiters (expires_at_ms);

-- One counter for all names. It rises with every grant and never falls below the clock in microseconds, so it needs no
-- row per name, and goes on rising if this table is lost.
CREATE TABLE IF NOT EXISTS holdfast_counter (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  last_token INTEGER NOT NULL
);

INSERT OR IGNORE INTO holdfast_counter (id, last_token) VALUES (1, 0);

-- Rate limits: a row for each name and limit. limit_id is the limit's id (see protocol/README.md), reset_at_ms the
-- moment at which nothing of the limit is in use any more, with fractions. A row whose reset_at_ms has passed
-- has ended. While the limit is blocked, block is the text "moment until length" (see protocol/README.md), and
-- reset_at_ms the later of the moment and the block's end. Otherwise block is NULL.
CREATE TABLE IF NOT EXISTS holdfast_rates (
  name        TEXT NOT NULL,
  limit_id    TEXT NOT NULL,
  reset_at_ms REAL NOT NULL,
  block       TEXT,
  PRIMARY KEY (name, limit_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS holdfast_rates_reset_at ON holdfast_rates (reset_at_ms);

-- Leases that a claim with force has ended, the last 1,000 of them: a process in which a claim waits looks here whether
-- one of its leases was.
CREATE TABLE IF NOT EXISTS holdfast_forced_releases (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  claim_id     TEXT    NOT NULL,
  forced_by    TEXT    NOT NULL,
  forced_at_ms INTEGER NOT NULL
);

-- Leases that were found to end later than if they had been written at that moment: the clock has been set back since,
-- or is wrong now. Each ends its own length after that, by SQLite's clock and by the machine's monotonic clock, unless
-- the clock is set right before. expires_at_ms is that of the lease: after a renewal the note counts for nothing.
CREATE TABLE IF NOT EXISTS holdfast_ahead (
  lock_name             TEXT    NOT NULL,
  claim_id              TEXT    NOT NULL,
  expires_at_ms         INTEGER NOT NULL,
  found_at_ms           INTEGER NOT NULL,
  found_at_monotonic_ms INTEGER NOT NULL,
  PRIMARY KEY (lock_name, claim_id)
) WITHOUT ROWID;
