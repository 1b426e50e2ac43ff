"""The synchronous API. Its names are exported by `holdfast`."""
