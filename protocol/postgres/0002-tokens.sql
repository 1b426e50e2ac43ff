-- Migration 2: fencing tokens.
--
-- Inputs:  none
-- Outputs: the sequence holdfast_tokens; holdfast_raise_tokens(), to be called before nextval('holdfast_tokens'): whether it had to be raised
--
-- One counter for all names: it rises by one with every grant, and is kept ahead of the server's clock in microseconds by being raised to
-- "the clock plus one minute" whenever the clock has caught up with it. So the next token is higher than all before it
-- - after the table was truncated, because the sequence is not part of it;
-- - after the sequence itself was lost with the whole schema, because a new one is raised to a later clock than the old one ever was
--   (as long as fewer than a million tokens are drawn in a second);
-- - after a crash, because a grant is committed after the token's own log record; and with synchronous_commit = off, where that record may be lost,
--   because the first token after every start and every recovery is raised as well (before PostgreSQL 15 not after a crash that the postmaster itself
--   survived: then tokens of the last moment, with synchronous_commit = off, could be given again);
-- - after a failover to a replica that was behind, whose counter is, too: the first token after a promotion is raised in the same way, to a later clock than
--   the old primary ever saw;
-- - after the clock was set back, because nothing ever lowers the sequence.
-- It stays a safe integer for a JavaScript client until the year 2255.

CREATE SEQUENCE IF NOT EXISTS holdfast_tokens AS BIGINT;

CREATE OR REPLACE FUNCTION holdfast_raise_tokens() RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_lead  CONSTANT BIGINT := 60000000;
  -- When the server was last started, promoted, or recovered from a crash, which resets its statistics. A minute after what was replayed last, because the
  -- counter may have been raised since by a transaction that never got here. Before PostgreSQL 15, statistics cost too much to ask for.
  v_start CONSTANT BIGINT := extract(epoch FROM greatest(
    pg_postmaster_start_time(), pg_last_xact_replay_timestamp() + interval '1 minute',
    CASE WHEN current_setting('server_version_num')::integer >= 150000 THEN pg_stat_get_bgwriter_stat_reset_time() END)) * 1000000;
  v_last  BIGINT := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
  v_clock BIGINT := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
  IF v_last >= v_clock AND v_last >= v_start + v_lead THEN
    RETURN false;
  END IF;
  -- One at a time, and looked at again: two that raise it at once could set it to the lower of their two clocks, below a token already given. Given back
  -- at once and not with the transaction, which may be somebody's long one.
  BEGIN
    PERFORM pg_advisory_lock(7813544519228563561);
    v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
    v_clock := extract(epoch FROM clock_timestamp()) * 1000000;
    IF (v_last < v_clock OR v_last < v_start + v_lead) AND v_last < v_clock + v_lead THEN
      PERFORM setval('holdfast_tokens', v_clock + v_lead);
    END IF;
    PERFORM pg_advisory_unlock(7813544519228563561);
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    -- If it was got: the wait for it may have failed.
    PERFORM pg_advisory_unlock(7813544519228563561) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
      AND (classid::bigint << 32 | objid::bigint) = 7813544519228563561;
    RAISE;
  END;
  RETURN true;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (2) ON CONFLICT DO NOTHING;
