"""What several drivers need."""
