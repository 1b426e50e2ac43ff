-- Every statement of the SQLite driver, each under its name. Question marks are its inputs, in order.
-- Whatever writes runs between BEGIN IMMEDIATE and COMMIT, one transaction for a whole list.

-- name: format_table
-- Outputs: one row if the tables are there
SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_format'

-- name: format
-- Outputs: version, of the stored format
SELECT version FROM holdfast_format WHERE id = 1

-- name: now
-- Outputs: now_ms, the machine's clock as SQLite reads it
SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) AS now_ms

-- name: sweep_leases
-- Inputs: now_ms, how many at most. Rows that have ended count for nothing; this only gives back their space.
DELETE FROM holdfast_leases
WHERE (lock_name, claim_id) IN (SELECT lock_name, claim_id FROM holdfast_leases WHERE expires_at_ms <= ? LIMIT ?)

-- name: sweep_waiters
-- Inputs: now_ms, how many at most
DELETE FROM holdfast_waiters WHERE place IN (SELECT place FROM holdfast_waiters WHERE expires_at_ms <= ? LIMIT ?)

-- name: sweep_rates
-- Inputs: now_ms, how many at most
DELETE FROM holdfast_rates
WHERE (name, limit_id) IN (SELECT name, limit_id FROM holdfast_rates WHERE reset_at_ms <= ? LIMIT ?)

-- name: leases_of
-- Inputs: lock_name, now_ms
SELECT * FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ? ORDER BY fencing_token

-- name: waiters_of
-- Inputs: lock_name, now_ms, how many at most (-1: all)
SELECT * FROM holdfast_waiters WHERE lock_name = ? AND expires_at_ms > ? ORDER BY place LIMIT ?

-- name: waiter
-- Inputs: lock_name, claim_id, now_ms
SELECT * FROM holdfast_waiters WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: count_ahead
-- Inputs: lock_name, place, now_ms. Outputs: ahead, first_gone_ms (when the first of them ends if it is not heard of)
SELECT COUNT(*) AS ahead, MIN(expires_at_ms) AS first_gone_ms
FROM holdfast_waiters WHERE lock_name = ? AND place < ? AND expires_at_ms > ?

-- name: next_token
-- Inputs: now_ms. Outputs: last_token, which is the new one; no row if somebody emptied the table
UPDATE holdfast_counter SET last_token = MAX(last_token + 1, ? * 1000) WHERE id = 1 RETURNING last_token

-- name: restore_counter
INSERT OR IGNORE INTO holdfast_counter (id, last_token) VALUES (1, 0)

-- name: end_leases
-- Inputs: lock_name. For a claim that steals, in the transaction that then inserts its lease.
DELETE FROM holdfast_leases WHERE lock_name = ?

-- name: insert_lease
-- Inputs: lock_name, claim_id, holder_id, mode, max_permits, permits, fencing_token, acquired_at_ms, expires_at_ms, metadata
-- Only a row of the same claim that has ended can be in its place.
INSERT OR REPLACE INTO holdfast_leases
  (lock_name, claim_id, holder_id, mode, max_permits, permits, fencing_token, acquired_at_ms, expires_at_ms, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_waiter
-- Inputs: lock_name, claim_id, holder_id, mode, max_permits, permits, waiting_since_ms, expires_at_ms
INSERT INTO holdfast_waiters
  (lock_name, claim_id, holder_id, mode, max_permits, permits, waiting_since_ms, expires_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: keep_place
-- Inputs: expires_at_ms, place
UPDATE holdfast_waiters SET expires_at_ms = ? WHERE place = ?

-- name: delete_waiter
-- Inputs: lock_name, claim_id
DELETE FROM holdfast_waiters WHERE lock_name = ? AND claim_id = ?

-- name: set_end
-- Inputs: expires_at_ms, lock_name, claim_id, now_ms
UPDATE holdfast_leases SET expires_at_ms = ? WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: renew
-- Inputs: expires_at_ms, lock_name, claim_id, fencing_token, now_ms
UPDATE holdfast_leases SET expires_at_ms = ? WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms > ?

-- name: release
-- Inputs: lock_name, claim_id, fencing_token, now_ms
DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms > ?

-- name: withdraw
-- Inputs: lock_name, claim_id, now_ms
DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: rate
-- Inputs: name, limit_id
SELECT reset_at_ms FROM holdfast_rates WHERE name = ? AND limit_id = ?

-- name: set_rate
-- Inputs: name, limit_id, reset_at_ms
INSERT INTO holdfast_rates (name, limit_id, reset_at_ms) VALUES (?, ?, ?)
ON CONFLICT (name, limit_id) DO UPDATE SET reset_at_ms = excluded.reset_at_ms

-- name: names
-- Inputs: now_ms, now_ms, after, lock_name, lock_name, prefix, prefix, how many. One page of lock names in order.
SELECT lock_name FROM (
  SELECT lock_name FROM holdfast_leases WHERE expires_at_ms > ?
  UNION SELECT lock_name FROM holdfast_waiters WHERE expires_at_ms > ?
)
WHERE lock_name > ? AND (? IS NULL OR lock_name = ?) AND substr(lock_name, 1, length(?)) = ?
ORDER BY lock_name LIMIT ?
