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
STALLED_AFTER_MS = 30_000
"""Default time for which a heartbeat thread covers a blocked event loop."""
DEADLOCK_AFTER_MS = 1_000
"""Default time that a nested claim waits before it looks for a deadlock."""
MAX_DEADLOCK_REQUESTS = 500
"""Requests that one search for deadlocks sends to the store."""
MAX_DEADLOCK_RECORDS = 10_000
"""Leases and waiters that one search for deadlocks keeps."""
MAX_LOCKS_AT_ONCE = 100
MAX_FORCING_MS = 15_000
"""How long a driver without forced claims may take to end leases by force. It may have to wait for their holders."""
MAX_RENEWAL_PAUSE_MS = 5_000
"""The longest time between two renewals by a heartbeat. With a renewal a holder learns of a forced release."""
MIN_HINT_PAUSE_MS = 1_000
"""How soon a lease is renewed again because of a message that says it was ended by force."""
MAX_UNANSWERED_RESTORES = 10_000
"""Restored leases without an answer from the store that the instances on a driver remember."""
MAX_TEMPLATES = 100
MAX_RELEASE_TRIES = 6
"""How often a failed release is sent before its lease is left to expire."""
MAX_SLEEP_MS = 1_000
"""How long a clock step or a suspended machine can go unnoticed while leases are held."""
