"""Names that no other test has, in this run or another one."""

from __future__ import annotations

import secrets


def unique(what: str = "lock") -> str:
    return f"{what}:{secrets.token_hex(6)}"
