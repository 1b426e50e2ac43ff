"""The synchronous API on advisory locks. Its engine runs in an event loop of its own, in another thread."""

from __future__ import annotations

import time
from typing import Any, Callable

import psycopg
import pytest
from holdfast import LeaseLostError, NotAcquiredError, SyncDistributedLock
from holdfast.drivers.postgres_advisory import advisory_key, postgres_advisory_driver
from support.names import unique

TERMINATE = """SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = %s"""


def until(what: str, condition: Callable[[], Any], seconds: float = 30) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, f"waited {seconds} s for {what}"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["url", "connection"])
def test_a_block_excludes_others_and_ends_with_an_error_if_the_connection_has_ended(
    kind: str, postgres_url: str
) -> None:
    name, url = unique("sync"), postgres_url.replace("postgres://", "postgres+advisory://")
    connection = psycopg.Connection.connect(postgres_url, autocommit=True)
    lock = SyncDistributedLock(url if kind == "url" else postgres_advisory_driver(connection))
    rival = SyncDistributedLock(url)
    with lock.lock(name) as lease:
        with pytest.raises(NotAcquiredError):
            with rival.lock(name):
                pass
        token = lease.fencing_token
    with pytest.raises(LeaseLostError):
        # Without a heartbeat for a while: the end of the connection alone is the loss.
        with lock.lock(name, timeout_seconds=600) as lease:
            with psycopg.Connection.connect(postgres_url, autocommit=True) as admin:
                admin.execute(TERMINATE, [advisory_key(name)])
            until("the loss", lambda: not lease.held)
    with rival.lock(name) as lease:
        assert lease.fencing_token > token
    lock.close()
    rival.close()
    connection.close()
