-- Migration 16: which calls wait for the disk. Internal: called by the functions of the earlier migrations.
--
-- A call of the driver that changes leases waits for the disk, even if the role sets synchronous_commit = off, unless
-- p_relaxed is true. Every call that hands a lock over to a waiter waits, relaxed or not: the waiter relies on the
-- grant, and may be crash-safe although the caller is relaxed. The plain functions (acquire_lock and the others) follow
-- the session's setting, except for that.
-- A claim that is only refused or queued does not wait: if a crash undoes that, the waiter asks again.
--
-- Lowering and raising last until the end of the transaction. What was lowered is raised to the value before, because
-- `on` may wait for a standby when `local` does not. A transaction that has locked or written rows is not lowered by
-- p_relaxed: what was written may have to wait. Rate limits follow the same rules.

-- holdfast_set_durability
-- Inputs:  relaxed
-- Outputs: the new setting, if it was changed
CREATE OR REPLACE FUNCTION holdfast_set_durability(p_relaxed BOOLEAN) RETURNS TEXT
LANGUAGE plpgsql AS $$
BEGIN
  IF p_relaxed THEN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
      RETURN holdfast_lower_durability();
    END IF;
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    RETURN set_config(
      'synchronous_commit', coalesce(nullif(current_setting('holdfast.durability', true), ''), 'on'), true);
  END IF;
  RETURN NULL;
END
$$;

-- holdfast_lower_durability
-- Outputs: the new setting, if it was changed
CREATE OR REPLACE FUNCTION holdfast_lower_durability() RETURNS TEXT
LANGUAGE plpgsql AS $$
DECLARE
  v_before CONSTANT TEXT := current_setting('synchronous_commit');
BEGIN
  IF v_before <> 'off' THEN
    PERFORM set_config('holdfast.durability', v_before, true);
    RETURN set_config('synchronous_commit', 'off', true);
  END IF;
  RETURN NULL;
END
$$;

INSERT INTO holdfast_migrations (version) VALUES (16) ON CONFLICT DO NOTHING;
