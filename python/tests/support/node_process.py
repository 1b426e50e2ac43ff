"""A Node process that runs one program after the other: starting Node takes longer than most tests with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, List

REPOSITORY = Path(__file__).resolve().parents[3]
_BOOT = Path(__file__).with_name("node_worker.mjs")


class NodeProcess:
    """Belongs to no event loop, so that tests with different ones can use it."""

    idle: List[NodeProcess] = []
    """Those whose last program has closed what it had opened."""

    def __init__(self) -> None:
        node = os.environ.get("HOLDFAST_TEST_NODE") or shutil.which("node")
        if node is None:
            raise RuntimeError("cannot find node: install Node 20.19 or later, or set HOLDFAST_TEST_NODE to its path")
        if not (REPOSITORY / "dist/index.js").exists():
            raise RuntimeError("the TypeScript client is not built: run `npm ci && npm run build` in the repository")
        self.answers, writing = os.pipe()
        self._stderr = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [node, str(_BOOT), str(writing)],
                cwd=REPOSITORY,
                env={**os.environ, "NODE_OPTIONS": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        self.last_call = 0

    @classmethod
    def any(cls) -> NodeProcess:
        return cls.idle.pop() if cls.idle else cls()

    @classmethod
    def end_idle(cls) -> None:
        while cls.idle:
            cls.idle.pop().kill()

    def send(self, call: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(call)}\n".encode())
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        """May be called again."""
        if self._stderr.closed:
            return
        self._process.kill()
        self._process.wait()
        self._stderr.close()
        os.close(self.answers)
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # A call that it did not read.

    @property
    def printed(self) -> str:
        if self._stderr.closed:
            return "it was killed"
        self._stderr.seek(0)
        return f"it printed:\n{self._stderr.read().decode(errors='replace')}"
