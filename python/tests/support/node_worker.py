"""Another process, in Node, whose functions a test calls: "in process A, hold this lock"."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

REPOSITORY = Path(__file__).resolve().parents[3]
_BOOT = Path(__file__).with_name("node_worker.mjs")


class NodeError(Exception):
    """What a function of the worker threw. `name` and `code` are those of the JavaScript error."""

    def __init__(self, name: str, message: str, code: Optional[str] = None) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.code = code


class NodeWorker:
    """A Node process on the built TypeScript client. Use the fixture `node_worker`, which also ends it."""

    def __init__(self, process: asyncio.subprocess.Process, answers: asyncio.StreamReader, timeout: float) -> None:
        self._process = process
        self._answers = answers
        self._timeout = timeout
        self._waiting: Dict[int, asyncio.Future[Any]] = {}
        self._last_call = 0
        self._stderr = b""
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._read_errors())]

    @classmethod
    async def start(cls, source: str, env: Optional[Mapping[str, str]] = None, timeout: float = 15) -> NodeWorker:
        node = os.environ.get("HOLDFAST_TEST_NODE") or shutil.which("node")
        if node is None:
            raise RuntimeError("cannot find node: install Node 20.19 or later, or set HOLDFAST_TEST_NODE to its path")
        if not (REPOSITORY / "dist/index.js").exists():
            raise RuntimeError("the TypeScript client is not built: run `npm ci && npm run build` in the repository")
        reading, writing = os.pipe()
        # `exec 3>&N` gives the answers a fixed number. The shell is replaced by Node, so that the pid is Node's own.
        command = f'exec 3>&{writing} {writing}>&-; exec "$@"'
        arguments = [node, "--import", _BOOT.as_uri(), "--input-type=module", "--eval", source]
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/bash",
                "-c",
                command,
                "node-worker",
                *arguments,
                # Here, `holdfast` is the built package.
                cwd=REPOSITORY,
                env={**os.environ, "NODE_OPTIONS": "", **(env or {})},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        answers = asyncio.StreamReader(limit=64 << 20)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(answers), os.fdopen(reading, "rb", 0)
        )
        worker = cls(process, answers, timeout)
        try:
            # The first answer shows that the source was loaded. A syntax error in it fails here.
            await worker.call("holdfast:ready")
        except BaseException:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    async def call(self, name: str, *args: Any) -> Any:
        """Calls a function of the worker with JSON arguments, and returns its JSON result."""
        self._last_call += 1
        call_id = self._last_call
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        try:
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps({"id": call_id, "name": name, "args": args}) + "\n").encode())
            return await asyncio.wait_for(answer, self._timeout)
        except asyncio.TimeoutError:
            raise RuntimeError(f"{name}: the worker gave no answer in {self._timeout} s; {self._printed()}") from None
        finally:
            self._waiting.pop(call_id, None)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self) -> None:
        async for line in self._answers:
            reply = json.loads(line)
            answer = self._waiting.get(reply["id"])
            if answer is None or answer.done():
                continue
            error = reply.get("error")
            if error is None:
                answer.set_result(reply["result"])
            else:
                answer.set_exception(NodeError(error["name"], error["message"], error.get("code")))
        await self._process.wait()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RuntimeError(f"the worker ended before it answered; {self._printed()}"))

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._stderr += line

    def _printed(self) -> str:
        return f"it printed:\n{self._stderr.decode(errors='replace')}"
