"""The scripts of `protocol/redis/`, run by their hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Awaitable, Callable, Sequence

from ... import _protocol
from .connection import Command
from .failures import is_no_script
from .link import Link

Runner = Callable[[Sequence[Command]], Awaitable[list[Any]]]


@dataclass(frozen=True)
class Script:
    text: str
    sha: str


@dataclass(frozen=True)
class ScriptCall:
    keys: Sequence[str]
    args: Sequence[str]


def script_of(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@lru_cache(maxsize=None)
def protocol_script(name: str) -> Script:
    """Read and hashed once, when it is first used."""
    return script_of(_protocol.read(f"redis/{name}.lua"))


@lru_cache(maxsize=None)
def ballot_script() -> Script:
    """For Redlock: ballot.lua, which calls leases.lua as a function."""
    leases = _protocol.read("redis/leases.lua")
    ballot = _protocol.read("redis/ballot.lua")
    return script_of(f"local function leases(KEYS, ARGV)\n{leases}\nend\n{ballot}")


async def run_scripts(link: Link, what: str, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
    """Runs a script for each call, one after the other on the server. All keys are in one slot on a Cluster.

    An error that the server answered is returned in its place. Raises if the outcome of all of them is unknown.
    """
    return await run_scripts_with(partial(link.run, what, calls[0].keys[0]), script, calls)


async def run_scripts_with(run: Runner, script: Script, calls: Sequence[ScriptCall]) -> list[Any]:
    """If the server does not have the script (after a start, a failover or SCRIPT FLUSH), the text is sent. The script
    still runs only once: a server that does not know it has done nothing."""
    replies = await run([_command("EVALSHA", script.sha, call) for call in calls])
    unknown = [at for at, reply in enumerate(replies) if isinstance(reply, Exception) and is_no_script(reply)]
    if unknown:
        again = await run([_command("EVAL", script.text, calls[at]) for at in unknown])
        for at, reply in zip(unknown, again):
            replies[at] = reply
    return replies


def _command(command: str, script: str, call: ScriptCall) -> Command:
    return (command, script, str(len(call.keys)), *call.keys, *call.args)
