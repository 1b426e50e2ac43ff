"""Distributed locks on the store that you already run. The same locks as those of the TypeScript client."""
