"""The limits of queues, lists, retries and messages. The same as those of the TypeScript client."""

from __future__ import annotations

MAX_NAME_LENGTH = 255
"""In UTF-16 code units. Fits `VARCHAR(255)`."""
MAX_HOLDER_ID_LENGTH = 255
MAX_METADATA_BYTES = 16_384
MAX_METADATA_DEPTH = 32
MAX_SAFE_INTEGER = 2**53 - 1
"""JSON numbers are doubles for many readers, so larger whole numbers would come back changed."""

MIN_TTL_MS = 50
"""Below this, the delays of timers and of the garbage collector are as long as the lease."""
MAX_TTL_MS = 365 * 24 * 3_600_000
"""One year. A lock that is meant to last longer belongs in a table of the application."""
MAX_WAIT_MS = MAX_TTL_MS

MAX_PAGE_SIZE = 10_000
"""Lock names on a page of `inspect`."""
MAX_INSPECTED = 10_000
"""Leases and waiters of one lock name in an instance's `inspect`. Reading stops with the page that reaches it."""
MAX_PERMITS = 1_000_000
MAX_LIST = 1_000
"""Requests in one call to a driver. Further requests go into a second call at the same time."""
MAX_RATE_LIMITS = 4
MAX_PENDING_CLAIMS = 100_000
"""Claims of one instance that are in flight or waiting."""
MAX_UNANSWERED_COMMANDS = 256
"""Commands that a Redis server has not answered. One that has stalled gets no more."""
CALL_TIMEOUT_MS = 5_000
PING_TTL_MS = 5_000
CLOSE_TIMEOUT_MS = 5_000
WAITER_TTL_MS = 10_000
MAX_CHAIN_DEPTH = 8
MAX_LOCKS_AT_ONCE = 100
MAX_TEMPLATES = 100
MAX_RELEASE_TRIES = 6
"""How often a failed release is sent before its lease is left to expire."""
MAX_SLEEP_MS = 1_000
"""How long a clock step or a suspended machine can go unnoticed while leases are held."""
