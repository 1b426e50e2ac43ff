"""Stores: one module for each kind, and a package with its parts."""
