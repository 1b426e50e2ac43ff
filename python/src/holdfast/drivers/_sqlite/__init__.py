"""The parts of the SQLite driver."""
