-- Migration 16: which calls wait for the disk. Internal: called by the functions of the earlier migrations.
--
-- A call that acquires, renews, steals or hands over a lease waits for the disk, even if the role sets
-- synchronous_commit = off. With p_relaxed it does not (synchronous_commit is off for this transaction only), unless it
-- hands a lock over: the waiter relies on that grant, and may not be relaxed itself.
--
-- Without p_relaxed, two kinds of calls do not wait either. If a crash undoes them, nobody holds a lock too many:
--   a claim that is only refused or queued  the waiter asks again
--   the release of leases without waiters, each with less than a minute left. The leases come back until they expire.
--                                           A later grant of the same name waits for the disk, and so for the release
--
-- holdfast_set_durability
-- Inputs:  relaxed
-- Outputs: the setting, if it was changed. If the transaction has written something before, it is never lowered: what
--          was written may have to wait
CREATE OR REPLACE FUNCTION holdfast_set_durability(p_relaxed BOOLEAN) RETURNS TEXT
LANGUAGE plpgsql AS $$
BEGIN
  IF p_relaxed THEN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
      RETURN set_config('synchronous_commit', 'off', true);
    END IF;
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    RETURN set_config('synchronous_commit', 'on', true);
  END IF;
  RETURN NULL;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (16) ON CONFLICT DO NOTHING;
