"""The parts of the postgres driver. The postgres-advisory driver uses its connections."""
