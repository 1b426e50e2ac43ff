-- From version 2 of the stored format to version 3, in the transaction that then runs schema.sql.
--
-- Inputs:  the tables of version 2
-- Outputs: a rate limit can be blocked.

ALTER TABLE holdfast_rates ADD COLUMN block TEXT;
