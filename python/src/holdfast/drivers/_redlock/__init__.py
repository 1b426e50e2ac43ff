"""The parts of the redlock driver."""
