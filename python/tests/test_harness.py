"""What the other tests rely on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from support.node_worker import NodeError, NodeWorker


async def test_a_worker_runs_the_built_typescript_client(node_worker, lock_name):
    worker = await node_worker(
        """
        import { DistributedLock } from 'holdfast'
        const lock = new DistributedLock({ url: 'memory:' })
        console.log('what a worker prints is not an answer')
        expose({ acquire: async (name) => (await lock.acquire(name)).acquired })
        """
    )
    assert await worker.call("acquire", lock_name) is True
    assert await worker.call("acquire", lock_name) is False


async def test_an_error_of_a_worker_keeps_its_name_and_code(node_worker):
    worker = await node_worker(
        """
        import { DistributedLock } from 'holdfast'
        expose({ open: () => new DistributedLock({ url: 'nothing://' }) })
        """
    )
    with pytest.raises(NodeError) as thrown:
        await worker.call("open")
    assert (thrown.value.name, thrown.value.code) == ("InvalidArgumentError", "INVALID_ARGUMENT")


async def test_a_worker_whose_source_does_not_load_fails_with_what_it_printed(node_worker):
    with pytest.raises(RuntimeError, match="SyntaxError"):
        await node_worker("this is not JavaScript")


async def test_a_killed_worker_fails_the_calls_that_wait(node_worker):
    worker = await node_worker("expose({ die: () => process.kill(process.pid, 'SIGKILL') })")
    with pytest.raises(RuntimeError, match="ended before it answered"):
        await worker.call("die")


async def test_a_process_runs_the_next_program_if_the_last_one_has_closed_what_it_opened():
    first = await NodeWorker.start("expose({ close() {}, pid: () => process.pid })")
    pid = await first.call("pid")
    await first.end()
    second = await NodeWorker.start("expose({ pid: () => process.pid, again: () => 'another program' })")
    assert await second.call("pid") == pid
    assert await second.call("again") == "another program"
    # It exposes no `close`.
    await second.end()
    third = await NodeWorker.start("expose({ pid: () => process.pid })")
    assert await third.call("pid") != pid
    await third.kill()


async def test_a_process_that_was_paused_or_owes_an_answer_is_not_used_again():
    source = "expose({ close() {}, pid: () => process.pid, hang: () => new Promise(() => {}) })"
    paused = await NodeWorker.start(source)
    paused.pause()
    paused.resume()
    waiting = await NodeWorker.start(source)
    call = asyncio.ensure_future(waiting.call("hang"))
    await asyncio.sleep(0)
    used = {await paused.call("pid"), await waiting.call("pid")}
    await paused.end()
    await waiting.end()
    await asyncio.gather(call, return_exceptions=True)
    another = await NodeWorker.start(source)
    assert await another.call("pid") not in used
    await another.end()


def test_a_server_of_its_own_can_be_killed_and_started_again(own_redis):
    server = own_redis()
    first = server._process.pid
    server.kill()
    server.start()
    assert server._process.pid != first


def test_processes_of_a_test_import_the_package_of_this_repository():
    import holdfast

    assert Path(holdfast.__file__).parents[1] == Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
