-- Every statement of a driver that uses only the plain functions, under its name. :"schema" is the quoted name of
-- their schema. Each is sent in a transaction of its own. They need only the two functions and the five plain columns.
--
-- The holder id must be unique to each acquisition: acquire_lock answers true to the same holder, and release_lock
-- compares nothing else. It ends with `/claim:` and the claim id (or, if that is longer than 200 characters, the
-- SHA-256 of it in hexadecimal digits). Renewals and releases find it by this end.

-- name: acquire
-- Inputs: lock name, holder id, time to live in whole seconds, metadata as JSON text (NULL: none)
-- Outputs: one row: acquired; at, the server's clock in ms; then the lease that was there before, all NULL if there was
-- none: holder id, acquired at and expires at in ms, metadata as text
SELECT :"schema".acquire_lock($1::text, $2::text, $3::integer, $4::text::jsonb) AS acquired,
  (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at, before.holder_id::text AS holder_id,
  (extract(epoch FROM before.acquired_at) * 1000)::float8 AS acquired_at_ms,
  (extract(epoch FROM before.expires_at) * 1000)::float8 AS expires_at_ms, before.metadata::text AS metadata
FROM (SELECT) AS one
LEFT JOIN :"schema".distributed_locks AS before ON before.lock_name = $1::text AND before.expires_at > clock_timestamp()

-- name: renew
-- Inputs: lock name, the end of the holder id, time to live in whole seconds. Outputs: renewed; no row: it has ended
-- acquire_lock alone would also grant a lease again that has ended. So the row is locked and checked before. While it
-- is locked, no other client can be granted the lock, even if the lease ends before acquire_lock looks at it.
WITH lease AS MATERIALIZED (
  SELECT lock_name, holder_id, metadata FROM :"schema".distributed_locks
  WHERE lock_name = $1::text AND right(holder_id, char_length($2::text)) = $2::text AND expires_at > clock_timestamp()
  FOR UPDATE
)
SELECT :"schema".acquire_lock(lock_name, holder_id, $3::integer, metadata) AS renewed FROM lease

-- name: release
-- Inputs: lock name, the end of the holder id. Outputs: released, whether the holder still had the lock; no row: it did
-- not
SELECT :"schema".release_lock(lock_name, holder_id) AS released FROM :"schema".distributed_locks
WHERE lock_name = $1::text AND right(holder_id, char_length($2::text)) = $2::text

-- name: committed
-- Sent after a grant. Outputs: committed; false: the grant is part of a transaction that is open on this connection
SELECT pg_current_xact_id_if_assigned() IS NULL AS committed

-- name: inspect
-- Inputs: lock name (NULL: any), prefix, after (NULL: all), the maximum number of names plus one
-- Outputs: one row for each lock that is held, ordered by name, byte by byte; times in ms
SELECT lock_name::text, holder_id::text, (extract(epoch FROM acquired_at) * 1000)::float8 AS acquired_at_ms,
  (extract(epoch FROM expires_at) * 1000)::float8 AS expires_at_ms, metadata::text AS metadata
FROM :"schema".distributed_locks
WHERE expires_at > clock_timestamp() AND ($1::text IS NULL OR lock_name = $1::text)
  AND starts_with(lock_name, $2::text) AND ($3::text IS NULL OR lock_name COLLATE "C" > $3::text)
ORDER BY lock_name COLLATE "C" LIMIT $4::integer
