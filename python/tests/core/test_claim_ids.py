from __future__ import annotations

import re

from holdfast import DistributedLock
from holdfast.core.claim_ids import Chain, ClaimIds
from holdfast.core.clock import Random
from holdfast.core.driver import InspectQuery
from holdfast.drivers.memory import memory_driver

PART = r"[0-9a-z]+-[A-Za-z0-9_-]{12}"


def test_a_claim_id_has_a_prefix_a_count_and_72_random_bits() -> None:
    ids = ClaimIds(Random())
    made = [ids.next() for _ in range(40)]
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]{{6}}\.{PART}", each) for each in made)
    assert len({each.split(".")[0] for each in made}) == 1
    assert [int(each.split(".")[1].split("-")[0], 36) for each in made] == list(range(1, 41))


def test_a_chain_has_at_most_eight_parts_after_the_prefix() -> None:
    id = ClaimIds(Random()).next()
    for depth in range(2, 12):
        id = Chain(id, Random()).next_claim_id()
        assert id.count(".") == min(depth, 8)


async def test_claims_inside_a_block_are_chained_to_it() -> None:
    driver = memory_driver()
    lock = DistributedLock(driver)

    async def claim_ids() -> "dict[str, str]":
        page = await driver.inspect(InspectQuery())
        return {lease.lock_name: lease.claim_id for lease in page.leases}

    async with lock.lock("outer"):
        async with lock.lock("inner"):
            async with lock.locks(["x", "y"]):
                found = await claim_ids()
    assert re.fullmatch(rf"{re.escape(found['outer'])}\.{PART}", found["inner"])
    assert re.fullmatch(rf"{re.escape(found['inner'])}\.{PART}\+{PART}", found["x"])
    assert found["x"].split("+")[0] == found["y"].split("+")[0]
    await lock.close()
