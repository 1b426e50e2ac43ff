"""A PostgreSQL server of a test's own, which it may configure and kill."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional


class PostgresServer:
    """`with PostgresServer() as server:` has a superuser `postgres`, who needs no password."""

    def __init__(self, settings: Optional[Mapping[str, str]] = None) -> None:
        # Not in a folder of pytest: those are closed to other users, and the server runs as one of them.
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._data = self._folder / "data"
        self._settings = settings or {}
        self._process: Optional["subprocess.Popen[bytes]"] = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        self._user: Dict[str, Any] = {}
        if os.getuid() == 0:
            # The server refuses to run as root.
            user = pwd.getpwnam("postgres")
            self._user = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        arguments = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        command = [_binary("initdb"), "-D", str(self._data), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._run())

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",
            "fsync": "off",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = open(self._folder / "log", "ab")
        self._process = subprocess.Popen(
            [_binary("postgres"), "-D", str(self._data), *options], stdout=log, stderr=log, **self._run()
        )
        log.close()
        until = time.monotonic() + 30
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends it at once, as in a crash."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(10)

    def _is_ready(self) -> bool:
        ready = [_binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        return subprocess.run(ready, check=False).returncode == 0

    def _run(self) -> Dict[str, Any]:
        return {"cwd": self._folder, "env": {**os.environ, "LC_ALL": "C"}, **self._user}


def _binary(name: str) -> str:
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)
    if found is None:
        raise RuntimeError(f"cannot find {name}: install postgresql")
    return found
