"""What can go wrong between a client and its store."""
