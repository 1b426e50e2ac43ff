-- Every statement of the SQLite driver, each under its name. Question marks are its inputs, in order.
-- Everything that writes runs between BEGIN IMMEDIATE and COMMIT, one transaction for a list.

-- name: format_table
-- Outputs: one row if the tables exist
SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_format'

-- name: format
-- Outputs: version, of the stored format
SELECT version FROM holdfast_format WHERE id = 1

-- name: now
-- Outputs: now_ms, the machine's clock as SQLite reads it
SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) AS now_ms

-- name: sweep_leases
-- Inputs: now_ms, how many at most. Rows that have ended count for nothing. This only frees their space.
DELETE FROM holdfast_leases
WHERE (lock_name, claim_id) IN (SELECT lock_name, claim_id FROM holdfast_leases WHERE expires_at_ms <= ? LIMIT ?)

-- name: sweep_waiters
-- Inputs: now_ms, how many at most
DELETE FROM holdfast_waiters WHERE place IN (SELECT place FROM holdfast_waiters WHERE expires_at_ms <= ? LIMIT ?)

-- name: sweep_rates
-- Inputs: now_ms, how many at most
DELETE FROM holdfast_rates
WHERE (name, limit_id) IN (SELECT name, limit_id FROM holdfast_rates WHERE reset_at_ms <= ? LIMIT ?)

-- name: sweep_ahead
-- Inputs: now_ms, how many at most
DELETE FROM holdfast_ahead
WHERE (lock_name, claim_id) IN (SELECT lock_name, claim_id FROM holdfast_ahead WHERE expires_at_ms <= ? LIMIT ?)

-- name: lease
-- Inputs: lock_name, claim_id, now_ms
SELECT fencing_token, acquired_at_ms FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: held
-- Inputs: now_ms, lock_name, now_ms, how many leases to read: the largest limit in question is enough.
-- Outputs: leases, permits, exclusive (1 if one of them is), ahead (1 if one of them was written by a clock that has
-- been set back since)
SELECT COUNT(*) AS leases, SUM(permits) AS permits, MAX(mode = 'exclusive') AS exclusive, MAX(ahead) AS ahead
FROM (
  SELECT permits, mode, expires_at_ms > ? + ttl_ms AS ahead FROM holdfast_leases
  WHERE lock_name = ? AND expires_at_ms > ? LIMIT ?
)
HAVING COUNT(*) > 0

-- name: holder
-- Inputs: lock_name, now_ms. Outputs: one of the leases
SELECT * FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ? LIMIT 1

-- name: next_end
-- Inputs: now_ms, lock_name, now_ms. Outputs: next_end_ms, when the first lease ends; NULL if there are none
SELECT MIN(MIN(expires_at_ms, ? + ttl_ms)) AS next_end_ms FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ?

-- name: leases_from
-- Inputs: lock_name, the claim_id to begin after, now_ms, how many at most
SELECT * FROM holdfast_leases WHERE lock_name = ? AND claim_id > ? AND expires_at_ms > ? ORDER BY claim_id LIMIT ?

-- name: waiters_from
-- Inputs: lock_name, the place to begin after, now_ms, how many at most
SELECT * FROM holdfast_waiters WHERE lock_name = ? AND place > ? AND expires_at_ms > ? ORDER BY place LIMIT ?

-- name: waiters_of
-- Inputs: lock_name, now_ms, how many at most (-1: all)
SELECT * FROM holdfast_waiters WHERE lock_name = ? AND expires_at_ms > ? ORDER BY place LIMIT ?

-- name: front_of
-- Inputs: lock_name, now_ms, how many to read
-- Outputs: waiters, last_place, first_gone_ms (when the first of them ends unless it asks again)
-- Only the front of the queue: each waiter asks again every few seconds, and must not count all others each time.
SELECT COUNT(*) AS waiters, MAX(place) AS last_place, MIN(expires_at_ms) AS first_gone_ms
FROM (
  SELECT place, expires_at_ms FROM holdfast_waiters
  WHERE lock_name = ? AND expires_at_ms > ? ORDER BY place LIMIT ?
)

-- name: ahead_of
-- Inputs: lock_name, place, now_ms. Outputs: ahead, first_gone_ms. For a waiter at the front.
SELECT COUNT(*) AS ahead, MIN(expires_at_ms) AS first_gone_ms
FROM holdfast_waiters WHERE lock_name = ? AND place < ? AND expires_at_ms > ?

-- name: note_ahead
-- Inputs: now_ms, monotonic_ms, lock_name, now_ms
-- Notes which leases end later than if they had been written now: the clock has been set back since. A note is made
-- again if the lease was renewed, or the clock was set back once more.
INSERT INTO holdfast_ahead (lock_name, claim_id, expires_at_ms, found_at_ms, found_at_monotonic_ms)
SELECT lock_name, claim_id, expires_at_ms, ?, ? FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ? + ttl_ms
ON CONFLICT (lock_name, claim_id) DO UPDATE SET expires_at_ms = excluded.expires_at_ms,
  found_at_ms = excluded.found_at_ms, found_at_monotonic_ms = excluded.found_at_monotonic_ms
WHERE expires_at_ms <> excluded.expires_at_ms OR found_at_ms > excluded.found_at_ms

-- name: end_ahead
-- Inputs: lock_name, now_ms, now_ms, monotonic_ms. After note_ahead.
-- Ends the leases whose own length has passed since they were noted, on both clocks. A monotonic clock below the noted
-- one began again with the machine, so the holder has ended. Never changes when a lease ends: if the clock is set right
-- again, the end that was written is right again, too.
DELETE FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ? + ttl_ms AND EXISTS (
  SELECT 1 FROM holdfast_ahead AS noted
  WHERE noted.lock_name = holdfast_leases.lock_name AND noted.claim_id = holdfast_leases.claim_id
    AND noted.expires_at_ms = holdfast_leases.expires_at_ms AND noted.found_at_ms + ttl_ms <= ?
    AND ? NOT BETWEEN noted.found_at_monotonic_ms AND noted.found_at_monotonic_ms + ttl_ms - 1
)

-- name: clamp_waiters
-- Inputs: now_ms, lock_name, now_ms
UPDATE holdfast_waiters SET expires_at_ms = ? + wait_ms WHERE lock_name = ? AND expires_at_ms > ? + wait_ms

-- name: next_token
-- Inputs: now_ms. Outputs: last_token, which is the new token; no row if the table was emptied
UPDATE holdfast_counter SET last_token = MAX(last_token + 1, ? * 1000) WHERE id = 1 RETURNING last_token

-- name: restore_counter
INSERT OR IGNORE INTO holdfast_counter (id, last_token) VALUES (1, 0)

-- name: newer_lease
-- Inputs: lock_name, the largest fencing_token that a claim with force may end, now_ms
-- Outputs: a lease with a larger one
SELECT * FROM holdfast_leases WHERE lock_name = ? AND fencing_token > ? AND expires_at_ms > ? LIMIT 1

-- name: note_forced_releases
-- Inputs: holder_id of the new holder, now_ms, lock_name, now_ms. Before end_leases: the leases that it ends, at most
--         1,000
INSERT INTO holdfast_forced_releases (claim_id, forced_by, forced_at_ms)
SELECT claim_id, ?, ? FROM holdfast_leases WHERE lock_name = ? AND expires_at_ms > ? LIMIT 1000

-- name: trim_forced_releases
-- After note_forced_releases
DELETE FROM holdfast_forced_releases WHERE id <= (SELECT MAX(id) FROM holdfast_forced_releases) - 1000

-- name: forced_releases_since
-- Inputs: the id to begin after, the time in ms to begin after. Outputs: id, claim_id, forced_by
SELECT id, claim_id, forced_by FROM holdfast_forced_releases WHERE id > ? AND forced_at_ms > ? ORDER BY id LIMIT 1000

-- name: end_leases
-- Inputs: lock_name. For a claim with force, in the transaction that then inserts its lease.
DELETE FROM holdfast_leases WHERE lock_name = ?

-- name: insert_lease
-- Inputs: lock_name, claim_id, holder_id, mode, max_permits, permits, fencing_token, acquired_at_ms, expires_at_ms,
-- ttl_ms, metadata
-- It can only replace a row of the same claim that has ended.
INSERT OR REPLACE INTO holdfast_leases
  (lock_name, claim_id, holder_id, mode, max_permits, permits, fencing_token, acquired_at_ms, expires_at_ms,
    ttl_ms, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_waiter
-- Inputs: lock_name, claim_id, holder_id, mode, max_permits, permits, waiting_since_ms, expires_at_ms, wait_ms
-- Outputs: place. A place that has ended is lost: the claim goes to the end of the queue.
INSERT OR REPLACE INTO holdfast_waiters
  (lock_name, claim_id, holder_id, mode, max_permits, permits, waiting_since_ms, expires_at_ms, wait_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING place

-- name: keep_place
-- Inputs: expires_at_ms, wait_ms, lock_name, claim_id, now_ms. Outputs: place; no row if it has none
UPDATE holdfast_waiters SET expires_at_ms = ?, wait_ms = ?
WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ? RETURNING place

-- name: delete_waiter
-- Inputs: lock_name, claim_id
DELETE FROM holdfast_waiters WHERE lock_name = ? AND claim_id = ?

-- name: set_end
-- Inputs: expires_at_ms, ttl_ms, lock_name, claim_id, now_ms
UPDATE holdfast_leases SET expires_at_ms = ?, ttl_ms = ? WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: renew
-- Inputs: expires_at_ms, ttl_ms, lock_name, claim_id, fencing_token, now_ms
UPDATE holdfast_leases SET expires_at_ms = ?, ttl_ms = ?
WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms > ?

-- name: release
-- Inputs: lock_name, claim_id, fencing_token, now_ms
DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms > ?

-- name: withdraw
-- Inputs: lock_name, claim_id, now_ms
DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND expires_at_ms > ?

-- name: rate
-- Inputs: name, limit_id
SELECT reset_at_ms, block FROM holdfast_rates WHERE name = ? AND limit_id = ?

-- name: rates_from
-- Inputs: name and limit_id, after which to begin; now_ms; how many
SELECT name, limit_id FROM holdfast_rates
WHERE (name, limit_id) > (?, ?) AND reset_at_ms > ? ORDER BY name, limit_id LIMIT ?

-- name: set_rate
-- Inputs: name, limit_id, reset_at_ms, block
INSERT INTO holdfast_rates (name, limit_id, reset_at_ms, block) VALUES (?, ?, ?, ?)
ON CONFLICT (name, limit_id) DO UPDATE SET reset_at_ms = excluded.reset_at_ms, block = excluded.block

-- name: delete_rate
-- Inputs: name, limit_id
DELETE FROM holdfast_rates WHERE name = ? AND limit_id = ?

-- name: names
-- Inputs: after, from, to, now_ms, how many, after, from, to, now_ms, how many, how many
-- Outputs: one page of lock names in order
-- `after` is the last name of the page before, followed by U+0001. No other name is between the two. It reads no more
-- of either table than the page needs.
SELECT lock_name FROM (
  SELECT * FROM (SELECT DISTINCT lock_name FROM holdfast_leases
    WHERE lock_name BETWEEN MAX(?, ?) AND ? AND expires_at_ms > ? ORDER BY lock_name LIMIT ?)
  UNION SELECT * FROM (SELECT DISTINCT lock_name FROM holdfast_waiters
    WHERE lock_name BETWEEN MAX(?, ?) AND ? AND expires_at_ms > ? ORDER BY lock_name LIMIT ?)
)
ORDER BY lock_name LIMIT ?
