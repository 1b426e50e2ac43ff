"""Failure 32: a connection that was opened before a fork is not used after it, neither by the child nor by mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import asyncio, ctypes, json, os, sqlite3, sys, threading, time
from holdfast.core.driver import Claim, Grant, InspectQuery, LeaseRef, Renewal
from holdfast.drivers.sqlite import open_sqlite, sqlite_driver
from holdfast.errors import StoreError
path = sys.argv[1]
def claim(name, claim_id, **options): return Claim(name, claim_id, "test", 60_000, **options)
async def granted(driver, claim):
    [answer] = await driver.acquire([claim])
    return isinstance(answer, Grant)
def files():
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
        if "locks.db" in (os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else ""))
def child(work, fork=os.fork):
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    answer = b""
    while part := os.read(reading, 65536): answer += part
    os.waitpid(pid, 0)
    return json.loads(answer)
"""


def run(script: str, path: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_connection_is_open_during_a_fork_and_both_processes_open_their_own(sqlite_path: Path) -> None:
    script = """
async def main():
    driver = await open_sqlite("sqlite:" + path)
    assert await granted(driver, claim("name", "parent"))
    assert len(files()) >= 3
    def in_child():
        inherited = files()
        async def work():
            refused = await granted(driver, claim("name", "child"))
            new = await granted(driver, claim("other", "child"))
            return [inherited, refused, new]
        return asyncio.run(work())
    inherited, refused, new = await asyncio.to_thread(child, in_child)
    assert (inherited, refused, new) == ([], False, True), (inherited, refused, new)
    assert not await granted(driver, claim("other", "parent"))
    [answer] = await driver.release([LeaseRef("name", "parent")])
    assert answer is True
    await driver.close()
    print("done")
asyncio.run(main())
"""
    assert run(script, sqlite_path) == "done"


def test_a_fork_in_the_middle_of_many_transactions_loses_none(sqlite_path: Path) -> None:
    script = """
async def main():
    driver = await open_sqlite("sqlite:" + path)
    counts = {"done": 0}
    stopping = False
    async def work(name):
        last = 0
        while not stopping:
            counts["done"] += 1
            one = claim(name, f"{name} {counts['done']}")
            [grant] = await driver.acquire([one])
            assert grant.fencing_token > last
            last = grant.fencing_token
            assert await driver.release([LeaseRef(name, one.claim_id, last)]) == [True]
    tasks = [asyncio.ensure_future(work(f"name {at}")) for at in range(4)]
    def in_child():
        async def one():
            return await granted(driver, claim("held", "child")), await granted(driver, claim(f"of {os.getpid()}", "x"))
        return asyncio.run(one())
    assert await granted(driver, claim("held", "parent"))
    for _ in range(10):
        answer = await asyncio.to_thread(child, in_child)
        assert answer == [False, True], answer
    stopping = True
    await asyncio.gather(*tasks)
    assert counts["done"] > 10
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    names = [name for (name,) in check.execute("SELECT lock_name FROM holdfast_leases")]
    assert len(names) == 11, names
    print("done")
asyncio.run(main())
"""
    assert run(script, sqlite_path) == "done"


def test_a_waiter_of_the_parent_is_still_woken_after_a_fork(sqlite_path: Path) -> None:
    script = """
class Listener:
    def __init__(self): self.woken = asyncio.Event()
    def wake(self, lock_name, claim_id=None): self.woken.set()
    def disconnected(self, cause): print("disconnected", cause)
async def main():
    driver, other = await open_sqlite("sqlite:" + path), await open_sqlite("sqlite:" + path)
    assert await granted(other, claim("name", "holder"))
    assert not await granted(driver, claim("name", "waiter", waiter_ttl_ms=60_000))
    listener = Listener()
    await driver.listen(listener)
    def in_child():
        # The child's copies must not disturb the watch of the parent.
        async def work():
            await driver.close()
            await other.close()
            return "closed"
        return asyncio.run(work())
    assert await asyncio.to_thread(child, in_child) == "closed"
    listener.woken.clear()
    await other.release([LeaseRef("name", "holder")])
    await asyncio.wait_for(listener.woken.wait(), 30)
    assert await granted(driver, claim("name", "waiter"))
    print("done")
asyncio.run(main())
"""
    assert run(script, sqlite_path) == "done"


def test_a_process_that_was_forked_without_pythons_hooks_refuses_the_file_and_leaves_it_intact(
    sqlite_path: Path,
) -> None:
    """As by a server in C that embeds Python. SQLite would count on locks that only the parent has."""
    script = """
driver = sqlite_driver(path)
assert asyncio.run(granted(driver, claim("name", "parent")))
def in_child():
    async def work():
        answers = []
        for open_driver in (lambda: driver, lambda: sqlite_driver(path), lambda: sqlite_driver(path)):
            try:
                answers.append(await granted(open_driver(), claim("name", "child")))
            except StoreError as error:
                answers.append(str(error))
        return answers
    return asyncio.run(work())
# PyDLL keeps the GIL, as the child has no other thread that could release it. Not inside of an event loop, which only
# a fork with hooks ends in the child.
answers = child(in_child, fork=ctypes.PyDLL(None).fork)
assert isinstance(answers, list) and len(answers) == 3, answers
for answer in answers:
    assert "was open when this process was forked" in str(answer), answers
assert len(files()) >= 3
assert not asyncio.run(granted(driver, claim("name", "late")))
asyncio.run(driver.close())
print("done")
"""
    assert run(script, sqlite_path) == "done"


def test_a_database_that_was_passed_in_before_the_fork_is_refused_in_the_child(sqlite_path: Path) -> None:
    script = """
async def main():
    connection = sqlite3.connect(path)
    driver = sqlite_driver(connection)
    assert await granted(driver, claim("name", "parent"))
    def in_child():
        return asyncio.run(granted(driver, claim("name", "child")))
    print(await asyncio.to_thread(child, in_child))
    assert not await granted(driver, claim("name", "late"))
asyncio.run(main())
"""
    assert "StoreError: the database" in run(script, sqlite_path)
    assert "was passed in before this process was forked" in run(script, sqlite_path.with_name("2-locks.db"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_share_the_locks_of_their_parent(sqlite_path: Path, method: str) -> None:
    """The usual mistake: the lock is made at import time, and used before the workers start."""
    script = f"""
import multiprocessing
driver = sqlite_driver(path)
def work(name):
    async def one():
        own = driver if {method!r} == "fork" else sqlite_driver(sys.argv[1])
        answer = await granted(own, claim(name, f"worker {{os.getpid()}}"))
        await own.close()
        return answer
    return asyncio.run(one())
if __name__ == "__main__":
    assert asyncio.run(granted(driver, claim("name", "parent")))
    with multiprocessing.get_context({method!r}).Pool(2, maxtasksperchild=1) as pool:
        print(pool.map(work, ["name", "other", "name", "other"], 1).count(True))
"""
    file = sqlite_path.with_name("script.py")
    file.write_text(PRELUDE + script)
    command = [sys.executable, "-W", "ignore", str(file), str(sqlite_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done.stderr
