"""Rate limits: what `RateLimiter` is made of."""
