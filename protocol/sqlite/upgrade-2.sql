-- From version 1 of the stored format to version 2, in the transaction that then runs schema.sql.
--
-- Inputs:  the tables of version 1
-- Outputs: leases and waiters say for how long they were written. Rate limits, whose rows have changed, start again.

ALTER TABLE holdfast_leases ADD COLUMN ttl_ms INTEGER NOT NULL DEFAULT 31536000000;
ALTER TABLE holdfast_waiters ADD COLUMN wait_ms INTEGER NOT NULL DEFAULT 31536000000;
DROP TABLE holdfast_rates;
UPDATE holdfast_format SET version = 2 WHERE id = 1;
