-- Every statement of the PostgreSQL table driver, under its name. :"schema" is the quoted name of the schema that the
-- migrations were run in. Lists are passed as array literals in text, so that every client sends them the same way.

-- name: acquire
-- Inputs and outputs: as holdfast_acquire in 0004-leases.sql
CALL :"schema".holdfast_call_acquire($1::text::text[], $2::text::text[], $3::text::text[], $4::text::boolean[],
  $5::text::bigint[], $6::text::bigint[], $7::text::float8[], $8::text::float8[], $9::text::text[], $10::text,
  $11::text::boolean, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)

-- name: acquire_one
-- Inputs and outputs: as holdfast_acquire_one in 0014-one.sql
CALL :"schema".holdfast_call_acquire_one($1::text, $2::text, $3::text, $4::text::float8, $5::text::float8, $6::text,
  $7::text, $8::text::boolean, NULL)

-- name: acquire_groups
-- Inputs and outputs: as holdfast_call_acquire_groups in 0013-groups.sql
CALL :"schema".holdfast_call_acquire_groups($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[],
  $5::text::float8[], $6::text::text[], $7::text::boolean, NULL, NULL, NULL, NULL, NULL, NULL, NULL)

-- name: acquire_by_force
-- Inputs and outputs: as holdfast_steal in 0010-steal.sql
CALL :"schema".holdfast_call_steal($1::text, $2::text, $3::text, $4::text::float8, $5::text, $6::text::boolean,
  $7::text::bigint, NULL, NULL)

-- name: renew
-- Inputs: lock names, claim ids, tokens, times to live in ms, relaxed. Outputs: answers, as holdfast_renew
CALL :"schema".holdfast_call_renew($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::float8[],
  $5::text::boolean, NULL)

-- name: release
-- Inputs: lock names, claim ids, tokens, relaxed. Outputs: answers, as holdfast_release
CALL :"schema".holdfast_call_release($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::boolean, NULL)

-- name: release_one
-- Inputs: lock name, claim id, token, relaxed. Outputs: answer, as holdfast_release_one in 0014-one.sql
CALL :"schema".holdfast_call_release_one($1::text, $2::text, $3::text::bigint, $4::text::boolean, NULL)

-- name: listen_key
-- Outputs: key, as holdfast_key in 0015-key.sql. Also keeps the listening connection alive.
SELECT :"schema".holdfast_key() AS key

-- name: inspect
-- Inputs: lock name, prefix, after, page size. Outputs: page, as holdfast_inspect
SELECT :"schema".holdfast_inspect($1::text, $2::text, $3::text, $4::text::integer)::text AS page

-- name: consume
-- Inputs and outputs: as holdfast_consume in 0007-rates.sql
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
-- Inputs and outputs: as holdfast_change_rate in 0012-rate-changes.sql
CALL :"schema".holdfast_call_change_rate($1::text, $2::text::float8[], $3::text::float8, $4::text::boolean, NULL)

-- name: fence
-- Inputs: resource, fencing token. The result is cast to text, because Prisma fails on a column of the type void.
SELECT :"schema".holdfast_fence($1::text, $2::text::bigint)::text

-- name: reset_fence
-- Inputs: resource. Outputs: forgotten, 1 if the resource had a largest token, otherwise 0
WITH gone AS (DELETE FROM :"schema".holdfast_fences WHERE resource = $1::text RETURNING 1)
SELECT count(*)::text AS forgotten FROM gone

-- name: version
-- Outputs: version, the last migration that was run; 0: none
SELECT coalesce(max(version), 0)::text AS version FROM :"schema".holdfast_migrations

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
-- The functions of the migrations keep this search_path.
SET LOCAL search_path TO :"schema", pg_temp;
