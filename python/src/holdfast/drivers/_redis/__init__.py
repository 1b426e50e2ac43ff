"""The parts of the redis driver."""
