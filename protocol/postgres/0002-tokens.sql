-- Migration 2: fencing tokens.
--
-- Inputs:  none
-- Outputs: the sequences holdfast_tokens and holdfast_raised; holdfast_raise_tokens(), to be called before
--          nextval('holdfast_tokens') in the same transaction: whether it had to be raised
--
-- One counter for all names: it rises by one with every grant, and is kept ahead of the server's clock in microseconds
-- by being raised to "the clock plus one minute" whenever the clock has caught up with it, and once in every run of the
-- server. A run begins when the server is started or promoted, and when it has recovered from a crash. So the next
-- token is higher than all before it
-- - after the table was truncated, because the sequence is not part of it;
-- - after the sequence itself was lost with the whole schema, because a new one is raised to a later clock than the old
--   one ever was (as long as fewer than a million tokens are drawn in a second);
-- - after a crash, because a grant is committed after the token's own log record; and with synchronous_commit = off,
--   where that record may be lost, because another run begins (before PostgreSQL 15 not after a crash that the
--   postmaster itself survived: then tokens of the last moment, with synchronous_commit = off, could be given again);
-- - after a failover to a replica that was behind, whose counter is, too: another run begins, and its clock is later
--   than any that the old primary saw;
-- - after the clock was set back, because nothing ever lowers the sequence.
-- It stays a safe integer for a JavaScript client until the year 2255.

CREATE SEQUENCE IF NOT EXISTS holdfast_tokens AS BIGINT;

-- The run in which holdfast_tokens was raised last. A sequence, because what is written to it holds at once, and
-- outlives a ROLLBACK.
CREATE SEQUENCE IF NOT EXISTS holdfast_raised AS BIGINT;

CREATE OR REPLACE FUNCTION holdfast_raise_tokens() RETURNS BOOLEAN
LANGUAGE plpgsql AS $$
DECLARE
  v_lead   CONSTANT BIGINT := 60000000;
  v_run    BIGINT;
  v_fresh  BOOLEAN := false;
  v_last   BIGINT;
  v_target BIGINT;
BEGIN
  LOOP
    -- A number for this run. It is compared for equality only: a promoted server may have been started long before the
    -- primary that it replaces. Its parts are when the postmaster was started; what was replayed last, which a promotion
    -- ends; when statistics were reset, which a recovery does (before PostgreSQL 15 they cost too much to ask for); and
    -- the counter's own number, which is another one after a dump has been restored.
    v_run := (extract(epoch FROM pg_postmaster_start_time())
      + coalesce(extract(epoch FROM pg_last_xact_replay_timestamp()), 0)
      + coalesce(CASE WHEN current_setting('server_version_num')::integer >= 150000
          THEN extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) END, 0)) * 1000000
      + 'holdfast_tokens'::regclass::oid::bigint;
    IF pg_sequence_last_value('holdfast_tokens'::regclass) >= extract(epoch FROM clock_timestamp()) * 1000000
      AND pg_sequence_last_value('holdfast_raised'::regclass) = v_run
    THEN
      RETURN false;
    END IF;
    EXIT WHEN v_fresh;
    -- A transaction keeps what it has seen of the statistics. If they were reset since, it would take every other
    -- session's run for another one, and each would raise the counter after the other.
    PERFORM pg_stat_clear_snapshot();
    v_fresh := true;
  END LOOP;
  -- One at a time, and looked at again: two that raise it at once could set it to the lower of their two clocks, below
  -- a token already given. Given back at once and not with the transaction, which may be somebody's long one.
  BEGIN
    PERFORM pg_advisory_lock(7813544519228563561);
    v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
    v_target := extract(epoch FROM clock_timestamp()) * 1000000 + v_lead;
    IF v_last < v_target - v_lead OR pg_sequence_last_value('holdfast_raised'::regclass) IS DISTINCT FROM v_run THEN
      -- This run is not the one that is written there until the counter has been raised, so all calls from now on come
      -- here, and wait. Only those that had looked before this still draw. However long this session stalls, they draw
      -- fewer than a million tokens. That is how far setval has to reach beyond the counter: it would lower it
      -- otherwise, below theirs. A shorter way is gone by drawing, which never lowers it.
      PERFORM setval('holdfast_raised', 1);
      v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
      IF v_last < v_target - 1000000 THEN
        PERFORM setval('holdfast_tokens', v_target);
      END IF;
      WHILE v_last BETWEEN v_target - 1000000 AND v_target LOOP
        v_last := nextval('holdfast_tokens');
      END LOOP;
      PERFORM setval('holdfast_raised', v_run);
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
