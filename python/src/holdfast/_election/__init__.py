"""Leader election: what `LeaderElection` is made of."""
