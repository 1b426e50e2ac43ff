"""What a lock means, on any store: claims, leases, renewals, waiting."""
