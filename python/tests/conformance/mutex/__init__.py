"""Primitives that can act as a mutex. All of them run the same groups of cases."""

from .subject import Handle, MutexInstance, MutexSubject, Taken

__all__ = ["Handle", "MutexInstance", "MutexSubject", "Taken"]
