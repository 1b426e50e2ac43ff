-- Every statement of the PostgreSQL advisory driver and of lockInTransaction, under its name. There is no table and no
-- function, and nothing is stored.
-- Statements that begin with PREPARE are prepared once for each connection, under a name that is unique to it. Their
-- texts are sent behind an activity comment, which differs nearly every time, and planning each text would take longer
-- than the locks. For one lock there are statements of their own (take, unlock), which cost half of those for a list
-- (take_list, unlock_list). They are deliberate copies: test/drivers/postgres-advisory/conformance.test.ts runs the
-- suite of driver calls, single and in lists, on both.
--
-- The key of a lock name is the first eight bytes of the SHA-256 of its UTF-8 form, as a signed big-endian number: see
-- ../vectors/advisory-keys.json.
-- In SQL: ('x' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 16))::bit(64)::bigint
--
-- The fencing token is base + lead + xid.
-- xid is a transaction id that is drawn after the lock was taken. So it is higher than that of every holder before. It
-- is not drawn inside a transaction that already has one.
-- base is the time in microseconds at which this server was started or recovered from a crash (which resets
-- statistics), or of the last transaction that it had replayed when it was promoted. It makes up for transaction ids
-- that a crash has forgotten: fewer of them were drawn than microseconds have passed.
-- lead makes up for a promotion: the primary may have come up again after the last transaction that the standby has
-- replayed. It is 10^12, the microseconds in 11.5 days, for each promotion that this server's timeline counts. So it
-- covers a standby that lags by less than that.
--
-- To show its leases, each connection sends a comment before each statement that lists them (the activity comment), so
-- pg_stat_activity shows it. The comment cannot contain the xid of the grant that its own statement makes. That one is
-- published as a shared advisory lock of the two-number kind, on the same connection.

-- name: identity
-- Inputs:  an id for the session, which no other session has; whether the connection is the driver's own
-- Outputs: pid; session, the id; room, how many bytes of a statement pg_stat_activity shows; before, the settings as
--          they were, as JSON; standby, whether the server is one; version, by which other servers are refused that
--          speak PostgreSQL's protocol
-- These settings are of the session only. Nothing may end it while it is idle, and the server finds out within half a
-- minute that a client has vanished. A grant does not wait for the disk: a crash ends every session, so nothing of a
-- grant has to survive it, and the token does not rely on it. On a connection of the caller that setting is left alone.
WITH settings AS MATERIALIZED (
  SELECT name, setting AS before, set_config(name, value, false) AS now FROM (VALUES
    ('idle_session_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), ('statement_timeout', '0'),
    ('lock_timeout', '0'), ('transaction_timeout', '0'), ('tcp_keepalives_idle', '10'),
    ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
    ('client_connection_check_interval', '5s'), ('default_transaction_read_only', 'off'), ('synchronous_commit', 'off')
  ) AS wanted (name, value) JOIN pg_settings USING (name)
  WHERE $2::text::boolean OR name <> 'synchronous_commit'
)
SELECT pg_backend_pid()::text AS pid, set_config('holdfast.session', $1::text, false) AS session,
  pg_size_bytes(current_setting('track_activity_query_size'))::text AS room, before::text,
  pg_is_in_recovery() AS standby, version() AS version
FROM (SELECT json_object_agg(name, before) AS before, count(now) FROM settings) AS set

-- name: version
-- Outputs: version. For a server that does not understand identity
SELECT version() AS version

-- name: try_key
-- Inputs:  a random key. Outputs: got, whether this connection has the lock now, which is not a lease
SELECT pg_try_advisory_lock($1::text::bigint) AS got

-- name: see_key
-- Inputs:  a random key that another connection has. Outputs: seen, whether this one sees the lock in pg_locks
SELECT count(*) > 0 AS seen FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
  AND classid::bigint << 32 | objid::bigint = $1::text::bigint

-- name: free_key
-- Inputs:  a random key. Outputs: freed, whether this connection had the lock
SELECT pg_advisory_unlock($1::text::bigint) AS freed

-- name: timeline
-- Outputs: timeline, which rises with every promotion. It fails on a standby, and on some services that speak
--          PostgreSQL's protocol
SELECT ('x' || left(pg_walfile_name('0/1'::pg_lsn), 8))::bit(32)::bigint::text AS timeline

-- name: witness
-- Outputs: pid and session of the connection that answers. Run by another connection, inside a transaction
SELECT pg_backend_pid()::text AS pid, current_setting('holdfast.session', true) AS session

-- name: take
-- Inputs:  key; shared or not; whether to wait in the server's queue (NULL: the connection has the lock already, from
--          wait); the xid that was published before (0: none)
-- Outputs: xid, token, and acquired_at in ms. If the lock was not granted, xid and token are NULL; pid;
--          too_late: the transaction already has an id, and nothing was taken
-- acquired_at is the time of the grant. Without waiting that is the start of the statement, which pg_stat_activity
-- shows to others, too.
-- It waits for seconds at most, and fails with 55P03 then: see wait.
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
    WHEN $3 IS NULL THEN true
    WHEN $3 AND set_config('lock_timeout', (300 + 0.995 * (5000 - mod($1 % 5000 + 5000
      + (extract(epoch FROM clock_timestamp()) * 1000)::bigint, 5000)))::integer::text, true) IS NULL THEN false
    WHEN $3 AND $2 THEN pg_advisory_lock_shared($1)::text IS NOT NULL
    WHEN $3 THEN pg_advisory_lock($1)::text IS NOT NULL
    WHEN $2 THEN pg_try_advisory_lock_shared($1)
    ELSE pg_try_advisory_lock($1) END
  THEN pg_current_xact_id()::text::bigint END AS xid
  FROM (SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS too_late OFFSET 0) AS before OFFSET 0
) AS drawn

-- name: wait
-- Inputs:  :key; :shared or not; for how many ms it has been :waited for before. Outside of a transaction
-- It returns when this connection has the lock. Then take, with NULL, draws the token.
-- A statement that waits keeps its snapshot, and VACUUM removes nothing that is younger, in the whole database. So the
-- wait is cut into slices with a transaction each. All waiters leave the queue of a lock at the same moment of the
-- server's clock, every 5 s, and go back to its end at once. The longer one has waited, the earlier it does that, by up
-- to 300 ms, and not before those that were before it, for 0.1 s (on PostgreSQL 14 and later, which shows since when
-- they wait). So the older ones are before the younger ones again. At the moment of the timeout the lock may have been
-- granted nevertheless. Taken again, it would be held twice.
DO $$
DECLARE
  now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
  began_ms constant bigint := now_ms - :waited;
  left_ms integer;
  entered timestamptz;
BEGIN
  LOOP
    EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND pid = pg_backend_pid() AND classid::bigint << 32 | objid::bigint = :key);
    FOR look IN 1..100 LOOP
      EXIT WHEN NOT EXISTS (SELECT FROM pg_locks AS other WHERE locktype = 'advisory' AND objsubid = 1
        AND NOT granted AND classid::bigint << 32 | objid::bigint = :key
        AND (to_jsonb(other) ->> 'waitstart')::timestamptz < entered);
      PERFORM pg_sleep(0.001);
    END LOOP;
    entered := clock_timestamp();
    now_ms := extract(epoch FROM entered) * 1000;
    left_ms := 5000 - mod(:key::bigint % 5000 + 5000 + now_ms, 5000);
    PERFORM set_config('lock_timeout',
      (left_ms + 300 * (1 - least(1, greatest(0, (now_ms + left_ms - began_ms) / 64000.0))))::integer::text, true);
    BEGIN
      IF :shared THEN
        PERFORM pg_advisory_lock_shared(:key);
      ELSE
        PERFORM pg_advisory_lock(:key);
      END IF;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      NULL;
    END;
    COMMIT;
  END LOOP;
END $$

-- name: take_list
-- Inputs:  keys; shared or not for each; the xid that was published before (0: none). It waits for none of them
-- Outputs: got, the positions in the list of the locks that were granted, counted from 1; the rest as take
PREPARE :"name" (bigint[], boolean[], bigint) AS
SELECT got::text, xid::text, too_late, pg_backend_pid()::text AS pid,
  (extract(epoch FROM statement_timestamp()) * 1000)::text AS acquired_at,
  ((extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
    pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + :lead + xid)::text AS token,
  CASE WHEN xid IS NOT NULL THEN pg_try_advisory_lock_shared((xid >> 32)::integer, ((xid << 32) >> 32)::integer)
    AND ($3 = 0 OR pg_advisory_unlock_shared(($3 >> 32)::integer, (($3 << 32) >> 32)::integer)) END AS published
FROM (
  SELECT too_late, got, CASE WHEN got IS NOT NULL THEN pg_current_xact_id()::text::bigint END AS xid FROM (
    SELECT bool_or(too_late) AS too_late, array_agg(ord) FILTER (WHERE CASE WHEN too_late THEN false WHEN shared
      THEN pg_try_advisory_lock_shared(key) ELSE pg_try_advisory_lock(key) END) AS got
    FROM (SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS too_late OFFSET 0) AS before,
      unnest($1, $2) WITH ORDINALITY AS asked (key, shared, ord)
  ) AS tried OFFSET 0
) AS drawn

-- name: unlock
-- Inputs:  key; shared or not
-- Outputs: released; pid
PREPARE :"name" (bigint, boolean) AS
SELECT CASE WHEN $2 THEN pg_advisory_unlock_shared($1) ELSE pg_advisory_unlock($1) END AS released,
  pg_backend_pid()::text AS pid

-- name: unlock_list
-- Inputs:  keys; shared or not for each
-- Outputs: released, the positions in the list of the locks that were held, counted from 1; pid
PREPARE :"name" (bigint[], boolean[]) AS
SELECT array_agg(ord) FILTER (WHERE
    CASE WHEN shared THEN pg_advisory_unlock_shared(key) ELSE pg_advisory_unlock(key) END)::text AS released,
  pg_backend_pid()::text AS pid
FROM unnest($1, $2) WITH ORDINALITY AS asked (key, shared, ord)

-- name: unlock_all
-- Inputs:  pid of the session
-- Outputs: a row; none if another session was reached, and nothing was done
SELECT pg_advisory_unlock_all() WHERE pg_backend_pid() = $1::text::integer

-- name: cancel
-- Inputs:  pid of a connection that waits. It leaves the server's queue and can be used again
-- Outputs: canceled; pid of this connection
PREPARE :"name" (integer) AS
SELECT pg_cancel_backend($1) AS canceled, pg_backend_pid()::text AS pid

-- name: ping
-- Outputs: pid. Proves that the connection exists, and with it every lock on it
PREPARE :"name" AS
SELECT pg_backend_pid()::text AS pid

-- name: prove
-- Outputs: pid, as ping; raised, whether a client has the flag of forced releases (below). Takes the flag exclusively
--          until the end of its transaction, which has only this statement. If two holders do that at the same time,
--          one of them looks for requests without need
PREPARE :"name" AS
SELECT pg_backend_pid()::text AS pid, NOT pg_try_advisory_xact_lock(7813544519228563563) AS raised

-- name: lacks
-- Inputs:  keys; shared or not for each
-- Outputs: pid, as ping; lacks, whether this connection does not hold one of these locks. For a connection of the
--          caller, on which the application can release them, as pg_advisory_unlock_all and DISCARD ALL do
PREPARE :"name" (bigint[], boolean[]) AS
SELECT pg_backend_pid()::text AS pid, EXISTS (
  SELECT key, shared FROM unnest($1, $2) AS lease (key, shared) EXCEPT
  SELECT classid::bigint << 32 | objid::bigint, mode = 'ShareLock' FROM pg_locks
  WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
) AS lacks

-- name: own_locks
-- Outputs: key of each lock that this connection holds
SELECT (classid::bigint << 32 | objid::bigint)::text AS key FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted

-- name: locks
-- Inputs:  keys, or NULL for all
-- Outputs: each lock that is held or waited for, with the last statement of its connection. Not the flag of requests,
--          which holders have for a moment when they look
-- Connections are read one by one: the view of all of them costs several times as much.
PREPARE :"name" (bigint[]) AS
WITH locks AS MATERIALIZED (
  SELECT pid, objsubid, mode, granted, classid::bigint << 32 | objid::bigint AS key FROM pg_locks
  WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
), asked AS MATERIALIZED (
  SELECT * FROM locks WHERE objsubid = 1 AND key <> 7813544519228563563 AND ($1 IS NULL OR key = ANY ($1))
), activities AS MATERIALIZED (
  SELECT pid, query, query_start, (
    SELECT max(key) FROM locks AS published
    WHERE published.objsubid = 2 AND published.mode = 'ShareLock' AND published.pid = those.pid
  ) AS xid
  FROM (SELECT DISTINCT pid FROM asked) AS those,
    LATERAL pg_stat_get_activity(those.pid) AS activity (datid, activity_pid)
)
SELECT asked.pid::text, asked.key::text, asked.mode = 'ShareLock' AS shared, asked.granted,
  activities.query, (extract(epoch FROM activities.query_start) * 1000)::text AS asked_at,
  coalesce((extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
    pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + :lead + activities.xid, 0)::text AS token
FROM asked JOIN activities USING (pid)
ORDER BY asked.pid

-- name: lock_in_transaction
-- Inputs:  key; shared or not; for how many milliseconds to wait for it. 0: not at all. The end of the transaction
--          releases the lock
-- Outputs: no row: no earlier statement has marked this transaction. Nothing was locked, and it is marked now, so send
--          this again. Still no row: no transaction is open that lasts longer than one statement. One row: another
--          session has the lock. Two rows: it is held
-- The mark is a setting that ends with the transaction, or with the savepoint that is rolled back. The times of
-- transaction and statement prove nothing: in the extended protocol they differ for a single statement, too. A
-- read-only transaction has no id, and neither has one whose first statement this is. Rows are counted, because clients
-- of the application can rename columns and convert values. The server ends a wait that takes too long with 55P03,
-- which aborts the transaction. Otherwise `lock_timeout` is afterwards what it was: `own` is read before it is changed.
WITH own AS MATERIALIZED (SELECT current_setting('lock_timeout') AS lock_timeout)
SELECT number FROM own CROSS JOIN LATERAL generate_series(1, CASE
  WHEN current_setting('holdfast.transaction', true) IS DISTINCT FROM 'marked'
    THEN 0 * length(set_config('holdfast.transaction', 'marked', true))
  WHEN $3::text = '0' AND $2::text::boolean THEN 1 + pg_try_advisory_xact_lock_shared($1::text::bigint)::integer
  WHEN $3::text = '0' THEN 1 + pg_try_advisory_xact_lock($1::text::bigint)::integer
  ELSE 2 + 0 * (length(set_config('lock_timeout', $3::text, true))
    + length(CASE WHEN $2::text::boolean
        THEN pg_advisory_xact_lock_shared($1::text::bigint)::text
        ELSE pg_advisory_xact_lock($1::text::bigint)::text
      END)
    + length(set_config('lock_timeout', own.lock_timeout, true)))
END) AS number

-- Ending a lease by force. The client that wants it ended takes, exclusively, the key of the text
-- `holdfast:force-release:` + claim id + `:` + token for each lease, and then, shared, the flag 7813544519228563563. It
-- keeps them until the holder has let go. So nothing is sent that could be forged: the holder reads from the server who
-- asks, and lets go only for a role that could end its session anyway.

-- name: release_requests
-- Outputs: key and role of each request whose client may end the sessions of this role
WITH locks AS MATERIALIZED (
  SELECT pid, mode, classid::bigint << 32 | objid::bigint AS key FROM pg_locks
  WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
SELECT asked.key::text, them.rolname::text AS role
FROM locks AS flag JOIN locks AS asked USING (pid) JOIN pg_stat_activity AS activity USING (pid)
  JOIN pg_roles AS them ON them.oid = activity.usesysid JOIN pg_roles AS me ON me.rolname = session_user
WHERE flag.key = 7813544519228563563 AND flag.mode = 'ShareLock' AND asked.mode = 'ExclusiveLock'
  AND (them.rolsuper OR (NOT me.rolsuper AND (pg_has_role(them.oid, me.oid, 'USAGE')
    OR coalesce(pg_has_role(them.oid, to_regrole('pg_signal_backend')::oid, 'USAGE'), false))))

-- name: may_end
-- Inputs:  pids
-- Outputs: for each that exists: pid; role, its role; super, whether that is a superuser; own_role; may, whether
--          own_role may end it
SELECT activity.pid::text, them.rolname::text AS role, them.rolsuper AS super, me.rolname::text AS own_role,
  me.rolsuper OR (NOT them.rolsuper AND (pg_has_role(me.oid, them.oid, 'USAGE')
    OR coalesce(pg_has_role(me.oid, to_regrole('pg_signal_backend')::oid, 'USAGE'), false))) AS may
FROM pg_stat_activity AS activity JOIN pg_roles AS them ON them.oid = activity.usesysid
  JOIN pg_roles AS me ON me.rolname = session_user
WHERE activity.pid = ANY ($1::text::integer[])

-- name: request_release
-- Inputs:  keys of requests. Before raise_flag: a holder that sees the flag finds the requests
-- Outputs: requested, how many of them this connection has now
SELECT count(*) FILTER (WHERE pg_try_advisory_lock(key))::text AS requested
FROM unnest($1::text::bigint[]) AS asked (key)

-- name: raise_flag
-- Outputs: raised, whether this connection has the flag. Holders have it for moments: try again
SELECT pg_try_advisory_lock_shared(7813544519228563563) AS raised

-- name: lower_flag
SELECT pg_advisory_unlock_shared(7813544519228563563) AS lowered

-- name: withdraw_request
-- Inputs:  keys of requests
SELECT count(pg_advisory_unlock(key))::text AS withdrawn FROM unnest($1::text::bigint[]) AS asked (key)

-- name: log_force_release
-- Inputs: a text for the log of the server
SELECT set_config('holdfast.force_release', $1::text, false)

-- name: write_log
-- After log_force_release. Every role may do this, and the log shows the role
DO $$ BEGIN RAISE LOG 'holdfast: %', current_setting('holdfast.force_release'); END $$

-- name: end_session
-- Inputs:  pid of a session; the key of a lock; the token of the session's last grant, as the statement locks returns
--          it (0: none); the lead of tokens
-- Outputs: a row with ended if the session still has the lock and was granted no other since; otherwise none
SELECT pg_terminate_backend(held.pid) AS ended FROM pg_locks AS held
WHERE held.pid = $1::text::integer AND held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
  AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND held.classid::bigint << 32 | held.objid::bigint = $2::text::bigint
  AND $3::text::bigint = coalesce((SELECT max(published.classid::bigint << 32 | published.objid::bigint)
    + (extract(epoch FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp(),
      pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint + $4::text::bigint
    FROM pg_locks AS published WHERE published.pid = held.pid AND published.locktype = 'advisory'
      AND published.objsubid = 2 AND published.mode = 'ShareLock' AND published.database = held.database), 0)
LIMIT 1
