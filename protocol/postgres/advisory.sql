-- Every statement of the PostgreSQL advisory driver and of lockInTransaction, each under its name. No table, no function, nothing stored.
-- Those that begin with PREPARE are prepared once for each connection, under a name that nobody else has: with a board in front of it, hardly a text is sent
-- twice, and planning would take longer than the locks. For one lock there is a statement of its own, which costs half of one for a list.
--
-- The key of a lock name is the first eight bytes of the SHA-256 of its UTF-8 form, as a signed big-endian number: see ../vectors/advisory-keys.json.
-- In SQL: ('x' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 16))::bit(64)::bigint
--
-- The fencing token is base + lead + xid. xid is a transaction id that is drawn after the lock was got, so it is higher than that of every holder before. It
-- is not drawn inside a transaction that has one already. base is in microseconds when this server came up: started, or recovered from a crash (statistics
-- are reset then); or what it had replayed last when it was promoted. It makes up for transaction ids that a crash has forgotten: fewer of them were drawn than
-- microseconds have passed. lead does so for a promotion: the primary may have come up again after what the standby has replayed. It is 10^12, as 11.5 days
-- have microseconds, for each promotion that this server's timeline counts, so it makes up for a standby that lags by less than that.
--
-- Who holds what: in front of each statement stands a comment that lists the leases of its connection, so pg_stat_activity shows it (its "board"). The xid of the
-- last grant, which that comment cannot know yet, is published as an advisory lock of the two-number kind, taken in shared mode by the same connection.

-- name: identity
-- Inputs: a word that nobody else has; whether the connection is the driver's own. Outputs: pid; room, how much of a statement others can see; before, the
-- settings as they were, as JSON; standby, whether it is one
-- Settings of the session only. Nothing may end it while it is idle; the server finds out within half a minute that a client has vanished. A grant waits for no
-- disk: nothing of it has to outlive a crash, which ends every session, and the token does not rely on it. That is not set where others write, too.
WITH settings AS MATERIALIZED (
  SELECT name, setting AS before, set_config(name, value, false) AS now FROM (VALUES
    ('idle_session_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), ('statement_timeout', '0'), ('lock_timeout', '0'),
    ('transaction_timeout', '0'), ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
    ('client_connection_check_interval', '5s'), ('default_transaction_read_only', 'off'), ('synchronous_commit', 'off')
  ) AS wanted (name, value) JOIN pg_settings USING (name)
  WHERE $2::text::boolean OR name <> 'synchronous_commit'
)
SELECT pg_backend_pid()::text AS pid, set_config('holdfast.session', $1::text, false) AS session,
  pg_size_bytes(current_setting('track_activity_query_size'))::text AS room, before::text, pg_is_in_recovery() AS standby
FROM (SELECT json_object_agg(name, before) AS before, count(now) FROM settings) AS set

-- name: timeline
-- Outputs: timeline, which rises with every promotion. A standby fails to tell it, and so do some services that speak PostgreSQL's protocol.
SELECT ('x' || left(pg_walfile_name('0/1'::pg_lsn), 8))::bit(32)::bigint::text AS timeline

-- name: witness
-- Outputs: pid and session of the connection that answers. Run inside a transaction, by somebody else.
SELECT pg_backend_pid()::text AS pid, current_setting('holdfast.session', true) AS session

-- name: take
-- Inputs: key; shared or not; whether it waits until the server's own queue has come to it; the xid that was published before (0: none)
-- acquired_at is the moment of the grant. Without waiting that is the moment of asking, which pg_stat_activity shows to others, too.
-- Outputs: xid, token and acquired_at in ms, all NULL but the last if it was not got; pid; too_late: the transaction has an id already, and nothing was got
PREPARE :"name" (bigint, boolean, boolean, bigint) AS
SELECT xid::text, too_late, pg_backend_pid()::text AS pid, (extract(epoch FROM CASE WHEN $3 THEN clock_timestamp()
    ELSE statement_timestamp() END) * 1000)::text AS acquired_at,
  ((extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
    pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + :lead + xid)::text AS token,
  CASE WHEN xid IS NOT NULL THEN pg_try_advisory_lock_shared((xid >> 32)::integer, ((xid << 32) >> 32)::integer)
    AND ($4 = 0 OR pg_advisory_unlock_shared(($4 >> 32)::integer, (($4 << 32) >> 32)::integer)) END AS published
FROM (
  SELECT too_late, CASE WHEN CASE
    WHEN too_late THEN false
    WHEN $3 AND $2 THEN pg_advisory_lock_shared($1)::text IS NOT NULL
    WHEN $3 THEN pg_advisory_lock($1)::text IS NOT NULL
    WHEN $2 THEN pg_try_advisory_lock_shared($1)
    ELSE pg_try_advisory_lock($1) END
  THEN pg_current_xact_id()::text::bigint END AS xid
  FROM (SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS too_late OFFSET 0) AS before OFFSET 0
) AS drawn

-- name: take_list
-- Inputs: keys, shared or not for each, the xid that was published before (0: none). Waits for none of them.
-- Outputs: got, the places in the list of those that were got, counted from 1; and as take
PREPARE :"name" (bigint[], boolean[], bigint) AS
SELECT got::text, xid::text, too_late, pg_backend_pid()::text AS pid, (extract(epoch FROM statement_timestamp()) * 1000)::text AS acquired_at,
  ((extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
    pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + :lead + xid)::text AS token,
  CASE WHEN xid IS NOT NULL THEN pg_try_advisory_lock_shared((xid >> 32)::integer, ((xid << 32) >> 32)::integer)
    AND ($3 = 0 OR pg_advisory_unlock_shared(($3 >> 32)::integer, (($3 << 32) >> 32)::integer)) END AS published
FROM (
  SELECT too_late, got, CASE WHEN got IS NOT NULL THEN pg_current_xact_id()::text::bigint END AS xid FROM (
    SELECT bool_or(too_late) AS too_late, array_agg(ord) FILTER (WHERE CASE WHEN too_late THEN false WHEN shared
      THEN pg_try_advisory_lock_shared(key) ELSE pg_try_advisory_lock(key) END) AS got
    FROM (SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS too_late OFFSET 0) AS before, unnest($1, $2) WITH ORDINALITY AS asked (key, shared, ord)
  ) AS tried OFFSET 0
) AS drawn

-- name: unlock
-- Inputs: key, shared or not. Outputs: released; pid
PREPARE :"name" (bigint, boolean) AS
SELECT CASE WHEN $2 THEN pg_advisory_unlock_shared($1) ELSE pg_advisory_unlock($1) END AS released, pg_backend_pid()::text AS pid

-- name: unlock_list
-- Inputs: keys, shared or not for each. Outputs: released, the places in the list of those that were held, counted from 1; pid
PREPARE :"name" (bigint[], boolean[]) AS
SELECT array_agg(ord) FILTER (WHERE CASE WHEN shared THEN pg_advisory_unlock_shared(key) ELSE pg_advisory_unlock(key) END)::text AS released,
  pg_backend_pid()::text AS pid
FROM unnest($1, $2) WITH ORDINALITY AS asked (key, shared, ord)

-- name: unlock_all
-- Inputs: pid of the session, which has to be the one that is reached. Outputs: a row, or none: it was another one
SELECT pg_advisory_unlock_all() WHERE pg_backend_pid() = $1::text::integer

-- name: cancel
-- Inputs: pid of a connection that waits. It gets out of the queue, and goes on.
SELECT pg_cancel_backend($1::text::integer) AS canceled

-- name: still
-- Outputs: pid. Proves that the connection, and with it every lock on it, is there.
PREPARE :"name" AS
SELECT pg_backend_pid()::text AS pid

-- name: mine
-- Outputs: key of each lock that this connection holds
SELECT (classid::bigint << 32 | objid::bigint)::text AS key FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted

-- name: locks
-- Inputs: keys, or NULL for all. Outputs: each lock that is held or waited for, with the board of its connection
-- Connections are looked at one by one: the view of all of them costs several times as much as what is looked for here.
PREPARE :"name" (bigint[]) AS
WITH locks AS MATERIALIZED (
  SELECT pid, objsubid, mode, granted, classid::bigint << 32 | objid::bigint AS key FROM pg_locks
  WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), asked AS MATERIALIZED (
  SELECT * FROM locks WHERE objsubid = 1 AND ($1 IS NULL OR key = ANY ($1))
), boards AS MATERIALIZED (
  SELECT pid, query, query_start, (
    SELECT max(key) FROM locks AS published
    WHERE published.objsubid = 2 AND published.mode = 'ShareLock' AND published.pid = those.pid
  ) AS xid
  FROM (SELECT DISTINCT pid FROM asked) AS those, LATERAL pg_stat_get_activity(those.pid) AS activity (datid, activity_pid)
)
SELECT asked.pid::text, asked.key::text, asked.mode = 'ShareLock' AS shared, asked.granted,
  boards.query AS board, (extract(epoch FROM boards.query_start) * 1000)::text AS asked_at,
  coalesce((extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
    pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + :lead + boards.xid, 0)::text AS token
FROM asked JOIN boards USING (pid)
ORDER BY asked.pid

-- name: lock_in_transaction
-- Inputs: key, shared or not. Waits for it; the transaction's end gives it back.
SELECT true AS got FROM (SELECT CASE WHEN $2::text::boolean THEN pg_advisory_xact_lock_shared($1::text::bigint)
  ELSE pg_advisory_xact_lock($1::text::bigint) END AS waited) AS waiting

-- name: try_in_transaction
-- Inputs: key, shared or not. Outputs: got
SELECT CASE WHEN $2::text::boolean THEN pg_try_advisory_xact_lock_shared($1::text::bigint)
  ELSE pg_try_advisory_xact_lock($1::text::bigint) END AS got
