"""The parts of the memory driver."""
