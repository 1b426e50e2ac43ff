"""The parts of the postgres-advisory driver."""
