"""A database whose encoding lacks characters."""

from __future__ import annotations

import secrets
from typing import AsyncIterator
from urllib.parse import urlsplit

import pytest

from holdfast.core.driver import Grant, LeaseRef, RateAnswer, RateLimit, RateRequest, Renewal
from holdfast.errors import StoreError
from support.postgres import claim_on, connected, opened

FOREIGN = "\u65e5\u672c"


@pytest.fixture
async def latin_url(postgres_url: str) -> AsyncIterator[str]:
    name = f"latin_{secrets.token_hex(6)}"
    async with connected(postgres_url) as admin:
        await admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("how", ["url with asyncpg", "url with psycopg"])
async def test_failure_44_a_text_that_cannot_be_stored_costs_a_list_nothing_else(latin_url: str, how: str) -> None:
    async with opened(how, latin_url, schema="public") as driver:
        claims = [claim_on(name) for name in ("a", "caf\u00e9", FOREIGN, "b")]
        answers = await driver.acquire(claims)
        assert [type(answer) for answer in answers] == [Grant, Grant, StoreError, Grant]
        assert "encoding of the database" in str(answers[2])
        renewals = [
            Renewal(claim.lock_name, claim.claim_id, answer.fencing_token if isinstance(answer, Grant) else 1, 60_000)
            for claim, answer in zip(claims, answers)
        ]
        renewed = await driver.renew(renewals)
        assert [renewed[0], renewed[1], type(renewed[2]), renewed[3]] == ["renewed", "renewed", StoreError, "renewed"]
        released = await driver.release([LeaseRef(each.lock_name, each.claim_id) for each in claims])
        assert [released[0], released[1], type(released[2]), released[3]] == [True, True, StoreError, True]
        limits = [RateLimit(5, 3_600_000, 5)]
        taken = await driver.consume([RateRequest(name, 1, limits) for name in ("x", FOREIGN, "y")])
        assert [type(answer) for answer in taken] == [RateAnswer, StoreError, RateAnswer]
        with pytest.raises(StoreError, match="encoding of the database") as refused:
            await driver.acquire([claim_on(FOREIGN)])
        assert not refused.value.retryable
