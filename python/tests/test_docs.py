"""The examples in the documentation run as they are, on real servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Tuple
from urllib.parse import urlsplit

import pytest

PYTHON = Path(__file__).resolve().parent.parent
DOCS = PYTHON.parent / "docs"
PAGES = [PYTHON / "README.md", *DOCS.glob("*/python*.md"), DOCS / "guides/monitoring.md", DOCS / "reference/events.md"]


def blocks() -> Iterator[Tuple[str, str]]:
    for page in PAGES:
        for at, code in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
            yield f"{page.parent.name}/{page.name} {at + 1}", code


SAYS = {
    "python/README.md 1": "only one process is here True\n",
    "guides/python-frameworks.md 1": "closed 2026-10 sent 2026-10\nSTALE_TOKEN\n",
    "guides/python-frameworks.md 2": "shipped 7 paid 7 made\n",
    "guides/python.md 1": "shipped, token rises: True\n",
    "guides/python.md 2": "True False True\n",
    "guides/python.md 3": "True True\nTrue\norder:7 by post True\n",
    "guides/python.md 4": "LEASE_LOST report\n",
    "guides/python.md 5": "part 0\npart 1\npart 2\n",
    "guides/python.md 6": "False api True\n",
    "guides/python.md 7": "False\n",
    "guides/monitoring.md 1": "0\n",
    "reference/events.md 1": "acquired order:123\n",
}


def test_every_example_is_listed_here() -> None:
    assert sorted(name for name, _ in blocks()) == sorted(SAYS)


@pytest.mark.parametrize("name, code", list(blocks()), ids=[name for name, _ in blocks()])
def test_an_example_runs(name: str, code: str, redis_url: str, postgres_url: str) -> None:
    code = code.replace("redis://localhost:6379", redis_url).replace("postgres://localhost/app", postgres_url)
    at = urlsplit(postgres_url)
    place = {"HOST": at.hostname, "PORT": at.port, "USER": at.username, "NAME": at.path.lstrip("/")}
    code = code.replace('"HOST": "localhost", "NAME": "app"', str(place)[1:-1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(PYTHON / "src")},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == (SAYS[name], "")
