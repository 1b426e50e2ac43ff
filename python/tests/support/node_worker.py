"""Another process, in Node, whose functions a test calls: "in process A, hold this lock"."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any, Dict, Optional

from support.node_process import NodeProcess


class NodeError(Exception):
    """What a function of the worker threw. `name` and `code` are those of the JavaScript error."""

    def __init__(self, name: str, message: str, code: Optional[str] = None) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.code = code


class NodeWorker:
    """A program in a Node process, on the built TypeScript client. Use the fixture `node_worker`, which also ends it.

    If the program exposes a function `close`, which ends all that it has opened, the process is used again.
    """

    def __init__(self, process: NodeProcess, timeout: float) -> None:
        self._process = process
        self._timeout = timeout
        self._waiting: Dict[int, asyncio.Future[Any]] = {}
        self._is_fit = True
        """Whether the process can still run another program."""

    @classmethod
    async def start(cls, source: str, timeout: float = 15) -> NodeWorker:
        worker = cls(NodeProcess.any(), timeout)
        try:
            await worker._listen()
            await worker.call("holdfast:load", source)
        except NodeError as error:
            await worker.kill()
            raise RuntimeError(f"the worker cannot load its program: {error}") from None
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def _listen(self) -> None:
        lines = asyncio.StreamReader(limit=64 << 20)
        # A duplicate, because the event loop closes what it has read from.
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(os.dup(self._process.answers), "rb", 0)
        )
        self._reading = asyncio.ensure_future(self._read(lines))

    async def call(self, name: str, *args: Any) -> Any:
        """Calls a function of the worker with JSON arguments, and returns its JSON result."""
        self._process.last_call += 1
        call_id = self._process.last_call
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        try:
            self._process.send({"id": call_id, "name": name, "args": args})
            return await asyncio.wait_for(answer, self._timeout)
        except asyncio.TimeoutError:
            self._is_fit = False
            text = f"{name}: the worker gave no answer in {self._timeout} s; {self._process.printed}"
            raise RuntimeError(text) from None
        except asyncio.CancelledError:
            self._is_fit = False  # The answer may still come.
            raise
        finally:
            self._waiting.pop(call_id, None)

    def pause(self) -> None:
        self._is_fit = False
        self._process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)

    async def kill(self) -> None:
        self._is_fit = False
        self._process.kill()
        await self._forget()

    async def end(self) -> None:
        """Leaves the process to the next test, or kills it."""
        if await self._has_closed():
            await self._forget()
            NodeProcess.idle.append(self._process)
        else:
            await self.kill()

    async def _has_closed(self) -> bool:
        if not self._is_fit or self._waiting:
            return False
        try:
            return bool(await self.call("holdfast:close"))
        except (NodeError, RuntimeError, OSError):
            return False

    async def _forget(self) -> None:
        self._reading.cancel()
        self._transport.close()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._fail_calls()

    async def _read(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            reply = json.loads(line)
            answer = self._waiting.get(reply["id"])
            if answer is None or answer.done():
                continue
            error = reply.get("error")
            if error is None:
                answer.set_result(reply["result"])
            else:
                answer.set_exception(NodeError(error["name"], error["message"], error.get("code")))
        self._is_fit = False
        self._fail_calls()

    def _fail_calls(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RuntimeError(f"the worker ended before it answered; {self._process.printed}"))
