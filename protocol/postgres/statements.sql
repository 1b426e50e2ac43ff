-- Every statement of the PostgreSQL table driver, under its name. :"schema" is the quoted name of the schema that the
-- migrations were run in. Lists are passed as array literals in text, so that every client sends them the same way.
-- No list has a NULL: with array_nulls = off, it would be a text. Instead, a limit or a token of 0 and the metadata ''
-- mean none.

-- name: acquire
-- Inputs: as holdfast_acquire. Outputs: answers, a JSON array of its answers
CALL :"schema".holdfast_call_acquire($1::text::text[], $2::text::text[], $3::text::text[], $4::text::boolean[],
  array_replace($5::text::bigint[], 0, NULL), $6::text::bigint[], $7::text::float8[], $8::text::float8[],
  array_replace($9::text::text[], '', NULL), $10::text, $11::text::boolean, NULL)

-- name: acquire_groups
-- Inputs: lock names, claim ids, group ids, holder ids, times to live in ms, metadata, relaxed; the claims of a group
-- are next to each other. Outputs: answers, a JSON array of the answers of holdfast_acquire_group
CALL :"schema".holdfast_call_acquire_groups($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[],
  $5::text::float8[], array_replace($6::text::text[], '', NULL), $7::text::boolean, NULL)

-- name: acquire_by_force
-- Inputs and outputs: as holdfast_acquire_by_force
CALL :"schema".holdfast_call_acquire_by_force($1::text, $2::text, $3::text, $4::text::float8, $5::text,
  $6::text::boolean, $7::text::bigint, NULL, NULL)

-- name: renew
-- Inputs: lock names, claim ids, tokens, times to live in ms, relaxed. Outputs: answers, as holdfast_change_leases
CALL :"schema".holdfast_call_change_leases($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::float8[],
  $5::text::boolean, NULL)

-- name: release
-- Inputs: lock names, claim ids, tokens, relaxed. Outputs: answers, as holdfast_change_leases
CALL :"schema".holdfast_call_change_leases($1::text::text[], $2::text::text[],
  array_replace($3::text::bigint[], 0, NULL), NULL, $4::text::boolean, NULL)

-- name: listen_key
-- Outputs: key, as holdfast_key. Also keeps the listening connection alive.
SELECT :"schema".holdfast_key() AS key

-- name: inspect
-- Inputs: lock name, prefix, after, page size. Outputs: page, as holdfast_inspect
SELECT :"schema".holdfast_inspect($1::text, $2::text, $3::text, $4::text::integer)::text AS page

-- name: consume
-- Inputs and outputs: as holdfast_consume
CALL :"schema".holdfast_call_consume($1::text::text[], $2::text::integer[], $3::text::integer[], $4::text::float8[],
  $5::text::boolean, NULL)

-- name: rates
-- Inputs: prefix; the name after which to begin; how many names
-- Outputs: rates, JSON: for each name, in order, the name and the numbers of the ids of its limits
SELECT coalesce(json_agg(json_build_array(name, state[4:3 + 3 * state[3]::integer])), '[]')::text AS rates FROM (
  SELECT name, state FROM :"schema".holdfast_rates
  WHERE name > $2::text AND starts_with(name, $1::text) AND expires_at > clock_timestamp()
  ORDER BY name LIMIT $3::text::integer
) AS found

-- name: change_rate
-- Inputs and outputs: as holdfast_change_rate
CALL :"schema".holdfast_call_change_rate($1::text, $2::text::float8[], $3::text::float8, $4::text::boolean, NULL)

-- name: fence
-- Inputs: resource, fencing token
-- Outputs: no row: nothing was done, as for lock_in_transaction in advisory.sql. One row: the token is accepted
SELECT number FROM generate_series(1, CASE
  WHEN current_setting('holdfast.transaction', true) IS DISTINCT FROM 'marked'
    THEN 0 * length(set_config('holdfast.transaction', 'marked', true))
  ELSE 1 + 0 * length(:"schema".holdfast_fence($1::text, $2::text::bigint)::text)
END) AS number

-- name: reset_fence
-- Inputs: resource
-- Outputs: no row: nothing was done, as for lock_in_transaction in advisory.sql. One row: the resource had no largest
--          token. Two rows: it is forgotten
WITH transaction AS MATERIALIZED (
  SELECT coalesce(current_setting('holdfast.transaction', true) = 'marked', false) AS is_marked
), gone AS (
  DELETE FROM :"schema".holdfast_fences USING transaction WHERE is_marked AND resource = $1::text RETURNING 1
)
SELECT number FROM transaction, generate_series(1, CASE
  WHEN is_marked THEN 1 + (SELECT count(*) FROM gone)::integer
  ELSE 0 * length(set_config('holdfast.transaction', 'marked', true))
END) AS number

-- name: version
-- Outputs: version, of the tables and functions
SELECT version::text AS version FROM :"schema".holdfast_format WHERE id = 1

-- name: hello
-- Inputs: channel, payload. Proves that a notification on the channel arrives.
SELECT pg_notify($1::text, $2::text)

-- name: begin_migration
-- Instances that start together migrate one after the other. READ COMMITTED, so that each sees what the ones before it
-- have created. A table is waited for only briefly, because every client that needs it meanwhile waits behind the
-- migration. After that the migration fails (55P03), and the driver tries it again.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL lock_timeout = '10s';
SELECT pg_advisory_xact_lock(7813544519228563562);
SET LOCAL lock_timeout = '200ms';

-- name: use_schema
-- The functions keep this search_path.
SET LOCAL search_path TO :"schema", pg_temp;
