"""Ends leases of other clients.

The server takes a session lock away only by ending its session, and with it all other locks of the holder. So the
holder is asked to let go of the one lease: an advisory lock is the request. The holder finds it with its next renewal,
checks with the server that the role that asks could end its session anyway, and lets go. Only if it does not, and the
caller wants that, its session is ended.
"""

from __future__ import annotations

import asyncio
import json
from typing import Awaitable, Callable, Optional, Sequence, Union

from ...core.driver import LeaseRecord
from ...errors import StoreError
from .._postgres.connections import DedicatedConnection, Row
from .._postgres.errors import IN_TRANSACTION
from .._postgres.statements import quote_identifier
from .held_locks import advisory_key, release_request_key
from .inspect_locks import leases_on
from .statements import STATEMENTS

Look = Callable[[Sequence[int]], Awaitable[Sequence[Row]]]
"""Reads the locks on these keys."""
Answer = Union[bool, Exception]

_ASK_SECONDS = 7.0
"""How long the holder has to let go. It renews at least every 5 s."""
_FLAG_SECONDS = 2.0
_END_SECONDS = 2.0
_POLL_SECONDS = 0.05


async def force_release(
    connection: DedicatedConnection,
    look: Look,
    leases: Sequence[LeaseRecord],
    *,
    by: str,
    end_session: bool,
    lead: int,
) -> list[Answer]:
    """Returns for each whether it ended, or why not. `lead`: by how much the tokens of this database are ahead."""
    return await _Forcing(connection, look, leases, by, lead).run(end_session)


class _Forcing:
    def __init__(
        self, connection: DedicatedConnection, look: Look, leases: Sequence[LeaseRecord], by: str, lead: int
    ) -> None:
        self._connection = connection
        self._look = look
        self._leases = leases
        self._by = by
        self._lead = lead

    async def run(self, end_session: bool) -> list[Answer]:
        before = await self._held_of(self._leases)
        if not before:
            return [False for _ in self._leases]
        held = [self._leases[at] for at in before]
        refusal = await self._refusal(list(before.values()))
        if refusal is None:
            await self._log(held)
            await self._ask(held)
            if end_session:
                await _until(_END_SECONDS, lambda: self._end_sessions(held))
        after = await self._held_of(self._leases)
        return [
            False if at not in before else True if at not in after else refusal or _still_held(lease, end_session)
            for at, lease in enumerate(self._leases)
        ]

    async def _held_of(self, leases: Sequence[LeaseRecord]) -> dict[int, Row]:
        """The leases that still exist, by their place in the list, with the server's row about each lock."""
        rows = await self._look(list({advisory_key(each.lock_name) for each in leases}))
        found = ((at, next((row for row in rows if _is_about(row, each)), None)) for at, each in enumerate(leases))
        return {at: row for at, row in found if row is not None}

    async def _refusal(self, rows: Sequence[Row]) -> Optional[StoreError]:
        """Why the holders would not let go for this role, and the server would not end their sessions."""
        pids = "{" + ",".join(str(row["pid"]) for row in rows) + "}"
        refused = next((row for row in await self._send("may_end", pids) if row["may"] is not True), None)
        if refused is None:
            return None
        own, theirs = quote_identifier(refused["own_role"]), quote_identifier(refused["role"])
        if refused["super"]:
            remedy = "connect as a superuser, as the holder did"
        else:
            remedy = f"run GRANT pg_signal_backend TO {own}; or GRANT {theirs} TO {own}"
        text = f"the role {own} may not end sessions of the role {theirs}, which holds the lock: {remedy}"
        return StoreError(text, retryable=False)

    async def _log(self, held: Sequence[LeaseRecord]) -> None:
        """There is no table that could keep a record."""
        for each in held:
            # As JSON: a line break must not begin another line of the log.
            name, holder, who = (json.dumps(text) for text in (each.lock_name, each.holder_id, self._by))
            await self._send("log_force_release", f"ends {name}, held by {holder} ({each.session}), for {who}")
            await self._send("write_log")

    async def _ask(self, held: Sequence[LeaseRecord]) -> None:
        """Asks the holders to let go, and waits until they have, for a bounded time."""
        # A holder that shows no claim is no client of Holdfast, or this role may not see what it shows.
        named = [each for each in held if each.fencing_token > 0]
        if not named:
            return
        requests = (release_request_key(each.claim_id, each.fencing_token) for each in named)
        keys = "{" + ",".join(map(str, requests)) + "}"
        await self._send("request_release", keys)
        # On a connection of the caller, what is not taken back would stay.
        try:
            if not await _until(_FLAG_SECONDS, self._raise_flag):
                raise StoreError(
                    "another client keeps the advisory lock 7813544519228563563, which a forced release needs for a "
                    "moment"
                )
            try:
                await _until(_ASK_SECONDS, lambda: self._have_ended(named))
            finally:
                await self._send("lower_flag")
        finally:
            await self._send("withdraw_request", keys)

    async def _raise_flag(self) -> bool:
        [row] = await self._send("raise_flag")
        return row["raised"] is True

    async def _have_ended(self, leases: Sequence[LeaseRecord]) -> bool:
        return not await self._held_of(leases)

    async def _end_sessions(self, held: Sequence[LeaseRecord]) -> bool:
        left = await self._held_of(held)
        for at, row in left.items():
            # Does nothing if the session was granted any lock since the look: that may be a newer lease on this name.
            key = str(advisory_key(held[at].lock_name))
            await self._send("end_session", str(row["pid"]), key, str(row["token"]), str(self._lead))
        return not left

    async def _send(self, name: str, *values: str) -> Sequence[Row]:
        if self._connection.is_callers and self._connection.in_transaction:
            raise StoreError(IN_TRANSACTION, retryable=False)
        return await self._connection.fetch(STATEMENTS[name], values)


async def _until(seconds: float, is_done: Callable[[], Awaitable[bool]]) -> bool:
    loop = asyncio.get_running_loop()
    last = loop.time() + seconds
    while not await is_done():
        if loop.time() >= last:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


def _is_about(row: Row, lease: LeaseRecord) -> bool:
    """A session that has the lock but does not show for which claims may still have this one."""
    is_shared = lease.mode == "shared"
    if not row["granted"] or row["key"] != str(advisory_key(lease.lock_name)) or row["shared"] != is_shared:
        return False
    return any(
        shown.session == lease.session
        and (shown.fencing_token == 0 or (shown.claim_id, shown.fencing_token) == (lease.claim_id, lease.fencing_token))
        for shown in leases_on(lease.lock_name, row)
    )


def _still_held(lease: LeaseRecord, end_session: bool) -> StoreError:
    hint = ". To end its whole session, and all other locks of it, use end_session=True"
    if end_session:
        why = "the server did not end it in time"
    elif lease.fencing_token > 0:
        why = f"it did not let go within {_ASK_SECONDS:g} s: it hangs, or has no heartbeat{hint}"
    else:
        why = (
            "what it holds the lock for is not visible, so it cannot be asked to let go. Either it is not a client of "
            f"Holdfast, or this role may not see its statements (GRANT pg_read_all_stats){hint}"
        )
    return StoreError(f'"{lease.lock_name}" is still held by the session {lease.session}: {why}', retryable=False)
