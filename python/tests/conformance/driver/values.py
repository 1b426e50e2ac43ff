"""Every value that the public API accepts comes back from the store unchanged."""

from __future__ import annotations

from typing import List, Sequence

from holdfast.core.driver import RateLimit, Refusal

from ..context import Context
from ..driver_calls import (
    acquire_one,
    consume_one,
    lease_on,
    must_grant,
    must_refuse,
    release_one,
    until_granted,
    waiters_on,
)
from ..rate_requests import request_on
from ..suite import Group
from ..timing import SHORT_MS

values = Group("driver interface: names and values")
case = values.case

ODD_TEXTS = {
    "spaces": "  a b ",
    "colons": "lock:user:7:profile:",
    "braces": "{a}b{c",
    "closing braces first": "}{}",
    "quotes": "'\"`",
    "a backslash, a percent sign and an underscore": "\\%_",
    "a question mark, a star and brackets": "?*[x]^",
    "a dollar sign and SQL": "$1'; DROP TABLE distributed_locks; --",
    "a slash and dots": "../..//",
    "line breaks and a tab": "a\nb\r\n\t",
    "control characters": "\u0001\u001f\u007f",
    "letters outside ASCII": "Äµß日本語العربية",
    "characters outside the basic plane": "🔒👩‍👩‍👧𝔘",
    "a byte order mark and other invisible ones": "\ufeff\u200b\u202e",
    "text that looks like a number": "007",
    "text that looks like JSON": '{"a":[null]}',
}

NAMES_OF_OBJECTS = ["constructor", "__proto__", "toString", "hasOwnProperty", "__class__"]
"""What every object of JavaScript has, and an attribute of those of Python."""

ODD = {"__proto__": {"a": 1}, "constructor": 2, "toString": [3], "__class__": None}

METADATA = {
    "text": 'Zürich "日本" \\ \n 🔒 \u0001',
    "empty": "",
    "numbers": [0, -1, 0.1, 1e21, 1e-7, 9_007_199_254_740_991, -1.5],
    "flags": [True, False, None],
    "emptyList": [],
    "emptyObject": {},
    "listOfEmpty": [[], {}, [[]]],
    "odd name ü.$": {"a.b": 1, "": 2},
    "nested": {"a": {"b": {"c": {"d": [{"e": [1, [2, [3]]]}]}}}},
}


def is_kept(what: str, odd: str) -> None:
    @case(f"a lock name with {what} is kept as it is")
    async def _(ctx: Context) -> None:
        a, b = await ctx.driver(), await ctx.driver()
        name = f"{odd}{ctx.lock_name}{odd}"
        claim = ctx.claim(lock_name=name)
        token = (await must_grant(a, claim)).fencing_token
        holder = (await must_refuse(b, ctx.claim(lock_name=name))).holder
        assert holder is not None and holder.lock_name == name
        assert (await lease_on(b, name)).lock_name == name
        assert await release_one(a, claim, token) is True
        await must_grant(b, ctx.claim(lock_name=name))


for each_what, each_text in ODD_TEXTS.items():
    is_kept(each_what, each_text)


@case("lock names of 255 characters that differ in the last one are different locks")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    await are_different(ctx, [padded(ctx.lock_name, "x", "a"), padded(ctx.lock_name, "x", "b")])
    await must_refuse(driver, ctx.claim(lock_name=padded(ctx.lock_name, "x", "a")))


@case("lock names of 255 characters outside ASCII are kept as they are")
async def _(ctx: Context) -> None:
    await are_different(ctx, [padded(ctx.lock_name, "ü", "a"), padded(ctx.lock_name, "ü", "b")])
    await are_different(ctx, [padded(ctx.lock_name, "🔒", "a"), padded(ctx.lock_name, "🔒", "b")])


@case("names that differ in case, spaces or composed letters are different locks")
async def _(ctx: Context) -> None:
    tails = ["a", "A", "a ", " a", "é", "e\u0301", "0", "00", "{a}", "a:", ":a"]
    await are_different(ctx, [f"{ctx.lock_name}:{tail}" for tail in tails])


@case("a name that is part of another, or like a key of the store, is a lock of its own")
async def _(ctx: Context) -> None:
    kinds = ["token", "queue", "waiters", "leases", "shared", "meta", "fence", "wake", "rate", "x:y"]
    tails = ["", *(f":{kind}" for kind in kinds)]
    await are_different(ctx, [f"{ctx.lock_name}{tail}" for tail in tails])
    await are_different(ctx, [f"lock:{ctx.lock_name}{tail}" for tail in tails])


@case("names such as constructor and __proto__ are names like any other")
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    has = ctx.capabilities
    taken = ctx.name("taken")
    await must_grant(a, ctx.claim(lock_name=taken))
    for name in NAMES_OF_OBJECTS:
        # Other runs on the same store use these names, too. So it is known only what a holder looks like.
        ending = ctx.claim(lock_name=name, ttl_ms=SHORT_MS)
        await until_granted(a, ending)
        following = ctx.claim(lock_name=name, waiter_ttl_ms=5_000)
        await acquire_one(b, following)
        await ctx.lease_ends(a, SHORT_MS)
        # Nothing is held, and one waits.
        for group in [None, "group"] if has.groups else [None]:
            claims = [ctx.claim(lock_name=each, group=group) for each in (name, taken)]
            answer = (await b.acquire(claims))[0]
            if isinstance(answer, Refusal) and answer.holder is not None:
                assert answer.holder.lock_name == name and isinstance(answer.holder.claim_id, str)
            for each in claims:
                await release_one(b, each)
        await release_one(b, following)

        claim = ctx.claim(lock_name=name, ttl_ms=5_000, metadata=ODD if has.metadata else None)
        token = (await until_granted(a, claim)).fencing_token
        for holder in [(await must_refuse(b, ctx.claim(lock_name=name))).holder, await lease_on(b, name)]:
            assert holder is not None and (holder.lock_name, holder.claim_id) == (name, claim.claim_id)
            assert holder.metadata == claim.metadata
        waiter = ctx.claim(lock_name=name, waiter_ttl_ms=5_000)
        await must_refuse(b, waiter)
        if has.queue:
            assert waiter.claim_id in [each.claim_id for each in await waiters_on(a, name)]
        await release_one(b, waiter)
        assert await release_one(a, claim, token) is True
        if has.rate:
            policy = RateLimit(limit=1_000_000, period_ms=1_000, burst=1_000_000)
            assert (await consume_one(a, request_on(name, policy))).allowed


@case("a holder id of 255 unusual characters is kept as it is")
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    odd = "host:1:\"'{}\\ ü日本🔒"
    holder_id = odd + "h" * (255 - utf16_length(odd))
    await must_grant(driver, ctx.claim(holder_id=holder_id))
    assert (await lease_on(driver, ctx.lock_name)).holder_id == holder_id


@case("metadata comes back as it went in", needs=["metadata"])
async def _(ctx: Context) -> None:
    a, b = await ctx.driver(), await ctx.driver()
    await must_grant(a, ctx.claim(metadata=METADATA))
    holder = (await must_refuse(b, ctx.claim())).holder
    assert holder is not None and holder.metadata == METADATA
    assert (await lease_on(b, ctx.lock_name)).metadata == METADATA


@case("16 KiB of metadata come back as they went in", needs=["metadata"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    metadata = {"text": "ü" * 8_000}
    await must_grant(driver, ctx.claim(metadata=metadata))
    assert (await lease_on(driver, ctx.lock_name)).metadata == metadata


@case("a lease shows its own metadata, not that of the lease before it", needs=["metadata"])
async def _(ctx: Context) -> None:
    driver = await ctx.driver()
    first = ctx.claim(metadata={"job": 1})
    await must_grant(driver, first)
    await release_one(driver, first)
    second = ctx.claim()
    await must_grant(driver, second)
    assert (await lease_on(driver, ctx.lock_name)).metadata is None
    await release_one(driver, second)
    await must_grant(driver, ctx.claim(metadata={"job": 3}))
    assert (await lease_on(driver, ctx.lock_name)).metadata == {"job": 3}


async def are_different(ctx: Context, names: Sequence[str]) -> None:
    """All of them can be held at once, and each is shown under its own name."""
    driver = await ctx.driver()
    for name in names:
        await must_grant(driver, ctx.claim(lock_name=name))
    shown: List[str] = [(await lease_on(driver, name)).lock_name for name in names]
    assert shown == list(names)


def padded(lock_name: str, filler: str, last: str) -> str:
    """Exactly 255 UTF-16 code units, in which all clients count, the last of them `last`."""
    times, rest = divmod(254 - utf16_length(lock_name), utf16_length(filler))
    return f"{lock_name}{filler * times}{'.' * rest}{last}"


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
