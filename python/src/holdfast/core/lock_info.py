from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Mapping, Optional


@dataclass(frozen=True)
class LockInfo:
    """A lease as others see it. Times are on the store's clock, in UTC."""

    lock_name: str
    holder_id: str
    acquired_at: datetime
    expires_at: datetime
    fencing_token: int
    metadata: Optional[Mapping[str, Any]] = None
