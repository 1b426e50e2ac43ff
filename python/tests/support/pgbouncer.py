"""A PgBouncer of a test's own, in front of a PostgreSQL server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Optional


class PgBouncer:
    """`with PgBouncer(port, pool_mode="session") as pooler:` is ready at `pooler.url`."""

    def __init__(self, server_port: int, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
        self._process: Optional["subprocess.Popen[bytes]"] = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"postgres://postgres@127.0.0.1:{self._port}/postgres"
        users = self._folder / "users.txt"
        users.write_text('"postgres" ""\n')
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "ignore_startup_parameters": "extra_float_digits",
            **settings,
        }
        text = "\n".join(f"{name} = {value}" for name, value in lines.items())
        self._file = self._folder / "pgbouncer.ini"
        self._file.write_text(f"[databases]\n* = host=127.0.0.1 port={server_port}\n[pgbouncer]\n{text}\n")

    def __enter__(self) -> PgBouncer:
        # Debian has it where only root looks.
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
        command = shutil.which("pgbouncer", path=path)
        if command is None:
            raise RuntimeError("cannot find pgbouncer: install it")
        log = open(self._folder / "log", "ab")
        user: Dict[str, Any] = {}
        if os.getuid() == 0:
            # It refuses to run as root.
            found = pwd.getpwnam("postgres")
            user = {"user": found.pw_uid, "group": found.pw_gid}
            for path_of in (self._folder, *self._folder.iterdir()):
                os.chown(path_of, found.pw_uid, found.pw_gid)
        self._process = subprocess.Popen([command, str(self._file)], stdout=log, stderr=log, cwd=self._folder, **user)
        log.close()
        until = time.monotonic() + 20
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PgBouncer did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
