"""Every example runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parent.parent
EXAMPLES = PYTHON / "examples"


def run(*args: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        cwd=EXAMPLES,
        env={**os.environ, "PYTHONPATH": str(PYTHON / "src"), **env},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plain_worker_does_the_report_and_pays_once(sqlite_url: str) -> None:
    said = run("worker.py", HOLDFAST_URL=sqlite_url)
    receipt = "receipt for token True"
    assert said.splitlines() == [*(f"part {part} of the report" for part in range(3)), receipt, receipt]


def test_the_django_command_is_skipped_while_another_machine_runs_it(sqlite_url: str) -> None:
    call = (
        "import django\nfrom django.conf import settings\nfrom django.core.management import call_command\n"
        "settings.configure(INSTALLED_APPS=['shop'])\ndjango.setup()\ncall_command('send_invoices')\n"
    )
    assert run("-c", call, HOLDFAST_URL=sqlite_url) == "sending invoices, held: True\n"
    # The command before keeps its lock for a second. A machine that is late waits for no one, and takes it after that.
    holder = (
        "from holdfast import SyncDistributedLock\n"
        f"with SyncDistributedLock().lock('send-invoices', blocking_timeout_seconds=30):\n    exec({call!r})\n"
    )
    assert run("-c", holder, HOLDFAST_URL=sqlite_url).startswith('skipped: "send-invoices" is held by ')


def test_the_sqlalchemy_transfer_refuses_a_stale_token(postgres_url: str) -> None:
    database = postgres_url.replace("postgres://", "postgresql+asyncpg://")
    said = run("sqlalchemy_transfer.py", HOLDFAST_URL=postgres_url, DATABASE_URL=database)
    assert said == "refused: STALE_TOKEN\namount 20\n"


def test_the_fastapi_app_answers_409_while_the_order_is_shipped(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = """
from fastapi.testclient import TestClient
from fastapi_app import app
from holdfast import SyncDistributedLock

with TestClient(app) as client, SyncDistributedLock() as lock:
    first = client.post("/orders/7/ship")
    print(first.status_code, first.json()["shipped"], first.json()["fencing_token"] > 0)
    print(client.post("/orders/7/ship").json())
    with lock.lock("order:8"):
        print(client.post("/orders/8/ship").status_code)
"""
    assert run("-c", use, HOLDFAST_URL=sqlite_url) == "200 now True\n{'order': 7, 'shipped': 'before'}\n409\n"
