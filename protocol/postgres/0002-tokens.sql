-- Migration 2: fencing tokens.
--
-- Inputs:  none
-- Outputs: the sequences holdfast_tokens and holdfast_raised, and the function holdfast_raise_tokens(). Call it before
--          nextval('holdfast_tokens') in the same transaction. It returns whether the counter had to be raised.
--          holdfast_is_raised() says whether it would have to be
--
-- One counter serves all names and rises by one with every grant. It is kept ahead of the server's clock in
-- microseconds: it is raised to "the clock plus one minute" when the clock has caught up with it, and once in every run
-- of the server. A run begins when the server is started or promoted, and when it has recovered from a crash. So the
-- next token is higher than all before it
-- - after the table was truncated, because the sequence is not part of it;
-- - after the sequence was lost with the schema, because the new one is raised to a later clock than the old one ever
--   was (as long as fewer than a million tokens are drawn in a second);
-- - after a crash, because a grant is committed after the token's log record. With synchronous_commit = off that record
--   may be lost, but a new run begins. (Before PostgreSQL 15, no new run begins after a crash that the postmaster
--   survived. Then the tokens of the last moment, with synchronous_commit = off, can be given again);
-- - after a failover to a replica whose counter lags: a new run begins, and its clock is later than any that the old
--   primary saw;
-- - after the clock was set back, because nothing ever lowers the sequence.
-- A token stays a safe integer for a JavaScript client until the year 2255.

CREATE SEQUENCE IF NOT EXISTS holdfast_tokens AS BIGINT;

-- The run in which holdfast_tokens was last raised. It is a sequence because a write to a sequence is visible at once
-- and survives a ROLLBACK.
CREATE SEQUENCE IF NOT EXISTS holdfast_raised AS BIGINT;

-- A number for this run. It is compared for equality only, because a promoted server may have been started long before
-- the primary that it replaces. It is made of the start of the postmaster, the last replayed transaction (a promotion
-- ends replay), the last reset of statistics (a recovery resets them; before PostgreSQL 15 they cost too much to read),
-- and the oid of the counter, which differs after a dump was restored.
-- This function and the next are single expressions in SQL, so that their callers' plans contain them.
CREATE OR REPLACE FUNCTION holdfast_run() RETURNS BIGINT
LANGUAGE sql AS $$
  SELECT ((extract(epoch FROM pg_postmaster_start_time())
    + coalesce(extract(epoch FROM pg_last_xact_replay_timestamp()), 0)
    + coalesce(CASE WHEN current_setting('server_version_num')::integer >= 150000
        THEN extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) END, 0)) * 1000000
    + 'holdfast_tokens'::regclass::oid::bigint)::bigint
$$;

-- Whether a token may be drawn: the counter is ahead of the clock, and was raised in this run.
CREATE OR REPLACE FUNCTION holdfast_is_raised() RETURNS BOOLEAN
LANGUAGE sql AS $$
  SELECT pg_sequence_last_value('holdfast_tokens'::regclass) >= extract(epoch FROM clock_timestamp()) * 1000000
    AND pg_sequence_last_value('holdfast_raised'::regclass) = holdfast_run()
$$;

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
    v_run := holdfast_run();
    IF holdfast_is_raised() THEN
      RETURN false;
    END IF;
    EXIT WHEN v_fresh;
    -- A transaction keeps its snapshot of the statistics. If they were reset since, it would see a different run than
    -- every other session, and each would raise the counter in turn.
    PERFORM pg_stat_clear_snapshot();
    v_fresh := true;
  END LOOP;
  -- One session at a time, and it checks again: two that raise the counter together could set it to the lower of their
  -- clocks, below a token already given. The lock is released at once, not with the transaction, which may be a long
  -- one of the caller.
  BEGIN
    PERFORM pg_advisory_lock(7813544519228563561);
    v_last := coalesce(pg_sequence_last_value('holdfast_tokens'::regclass), 0);
    v_target := extract(epoch FROM clock_timestamp()) * 1000000 + v_lead;
    IF v_last < v_target - v_lead OR pg_sequence_last_value('holdfast_raised'::regclass) IS DISTINCT FROM v_run THEN
      -- Until the counter is raised, holdfast_raised does not name this run. So all calls from now on come here and
      -- wait. Only calls that had checked before still draw tokens. However long this session stalls, they draw fewer
      -- than a million. setval must therefore reach that far beyond the counter, or it would lower it below their
      -- tokens. A shorter distance is covered by drawing, which never lowers the counter.
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
    -- Only if this session has the lock: the wait for it may have failed.
    PERFORM pg_advisory_unlock(7813544519228563561) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
      AND (classid::bigint << 32 | objid::bigint) = 7813544519228563561;
    RAISE;
  END;
  RETURN true;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (2) ON CONFLICT DO NOTHING;
