"""Claims of one list that are granted all or none."""

from __future__ import annotations

from itertools import groupby
from typing import Iterator, Sequence

from ...core.driver import Claim
from ...errors import StoreError


def in_groups(claims: Sequence[Claim]) -> Iterator[list[Claim]]:
    """The claims in their order: each claim without a group alone, adjacent claims of one group together."""
    for group, members in groupby(claims, key=lambda claim: claim.group):
        if group is None:
            for claim in members:
                yield [claim]
        else:
            yield list(members)


def left_over(lock_name: str) -> StoreError:
    """The answer to a member that already has its lease, from an earlier request, while its group is refused. The core
    withdraws it."""
    return StoreError(
        f'"{lock_name}" was granted by an earlier request, but not all of its group can be granted any more'
    )
