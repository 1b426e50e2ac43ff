from __future__ import annotations

from typing import Dict, Optional, Set

from holdfast.core.driver import Claim, Driver, Grant, StopListening


class Heard:
    """A listener that keeps what a driver has reported."""

    stop: StopListening

    def __init__(self) -> None:
        self.grants: Dict[str, Grant] = {}
        self.losses: Set[str] = set()
        self._names: Set[str] = set()
        self._claims: Set[str] = set()

    def tells_of(self, claim: Claim) -> bool:
        """Whether this claim has a reason to ask again, or its grant was reported."""
        return claim.lock_name in self._names or claim.claim_id in self._claims or claim.claim_id in self.grants

    def wake(self, lock_name: str, claim_id: Optional[str] = None) -> None:
        if claim_id is None:
            self._names.add(lock_name)
        else:
            self._claims.add(claim_id)

    def granted(self, claim_id: str, grant: Grant) -> None:
        self.grants[claim_id] = grant

    def lost(self, claim_id: str, cause: Exception) -> None:
        self.losses.add(claim_id)

    def disconnected(self, cause: Exception) -> None:
        pass


async def listen_on(driver: Driver) -> Heard:
    heard = Heard()
    heard.stop = await driver.listen(heard)
    return heard
