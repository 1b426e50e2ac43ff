"""A PostgreSQL server of a test's own, which it may configure and kill."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional


class PostgresServer:
    def __init__(self, folder: Path, settings: Optional[Mapping[str, str]] = None) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._settings = settings or {}
        self._process: Optional["subprocess.Popen[bytes]"] = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"postgres://postgres@127.0.0.1:{self.port}/postgres"
        folder.mkdir(parents=True, exist_ok=True)
        self._user: Dict[str, Any] = {}
        if os.getuid() == 0:
            # The server refuses to run as root. Its user must be able to reach the folder.
            user = pwd.getpwnam("postgres")
            self._user = {"user": user.pw_uid, "group": user.pw_gid}
            os.chown(folder, user.pw_uid, user.pw_gid)
            for parent in folder.parents:
                if parent.stat().st_uid == 0 and parent.stat().st_mode & 0o005 != 0o005:
                    parent.chmod(parent.stat().st_mode | 0o755)
        arguments = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        subprocess.run(
            [_binary("initdb"), "-D", str(self._data), *arguments], check=True, stdout=subprocess.DEVNULL, **self._run()
        )
        self.start()

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
