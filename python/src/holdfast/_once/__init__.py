"""Once-only jobs: what `OnceOnly` is made of."""
