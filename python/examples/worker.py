"""A worker without an event loop. Start it on every machine: one of them does the job.

    HOLDFAST_URL=redis://localhost:6379 python3 worker.py
"""

from __future__ import annotations

from holdfast import SyncDistributedLock, SyncLease, SyncOnceOnly


def charge(run: SyncLease) -> str:
    # Pass the key to the payment provider, too, and the token to what you write to.
    return f"receipt for token {run.fencing_token > 0}"


def main() -> None:
    with SyncDistributedLock() as lock, SyncOnceOnly() as once:
        result = lock.acquire("nightly-report", heartbeat=True)
        if not result:
            print(f"skipped: {result.error}")
            return
        with result.lease as lease:
            for part in range(3):
                # A thread cannot be cancelled, so check before each step that relies on the lock.
                lease.assert_held()
                print(f"part {part} of the report")
        print(once.once("payment:7", charge, for_seconds=3600))
        print(once.once("payment:7", charge, for_seconds=3600))


if __name__ == "__main__":
    main()
