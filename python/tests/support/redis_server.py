"""A Redis server of a test's own, to be killed or paused. The shared servers must not be."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Optional, Sequence


class RedisServer:
    """Starts empty. `kill` and `start` again on the same port lose its data, like a crash without persistence."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        program = os.environ.get("HOLDFAST_TEST_REDIS_SERVER") or shutil.which("redis-server")
        if program is None:
            raise RuntimeError("cannot find redis-server: install it (Debian and Ubuntu: apt-get install redis-server)")
        self._program = program
        self._folder = folder
        self._options = tuple(options)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.port = _free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        # A server that was unpacked, not installed, has its libraries in a folder of its own.
        libraries = os.environ.get("HOLDFAST_TEST_REDIS_LIBRARIES")
        self._process = subprocess.Popen(
            [self._program, *arguments, *self._options],
            env={**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # As long as a busy machine may take to start a process.
        for _ in range(2_000):
            if self._process.poll() is not None:
                raise RuntimeError(f"redis-server ended with code {self._process.returncode}")
            if _answers_ping(self.port):
                return
            time.sleep(0.01)
        self.kill()
        raise RuntimeError("redis-server did not answer in 20 s")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _answers_ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
