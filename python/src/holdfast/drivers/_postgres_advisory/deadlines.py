"""How long the server may take. Read at each use, so that a test can make them short."""

from __future__ import annotations

QUERY_SECONDS = 10.0
"""A half-open connection neither answers nor fails. After this time its query fails, and the connection is ended."""
CONNECT_SECONDS = 5.0
END_SECONDS = 1.0
UNLOCK_ALL_SECONDS = 1.0
SETTLE_SECONDS = 1.0
"""How long closing waits for the calls in flight."""
