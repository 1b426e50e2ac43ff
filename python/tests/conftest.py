"""The stores of the tests. README.md lists the fixtures."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, AsyncIterator, Awaitable, Callable, Iterator, List, Sequence

import pytest

SOURCE = str(Path(__file__).resolve().parents[1] / "src")
# For the Python processes that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
# Otherwise every process compiles the package anew, and every worker the assertions of all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The servers have no TLS. To ask each of them for it would cost every connection a round trip and a TLS context.
os.environ.setdefault("PGSSLMODE", "disable")

from support.names import unique  # noqa: E402
from support.node_process import NodeProcess  # noqa: E402
from support.node_worker import NodeWorker  # noqa: E402
from support.redis_server import RedisServer  # noqa: E402


def pytest_collection_finish() -> None:
    # The tests and the modules stay until the end. Otherwise they would be searched for garbage again and again.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    NodeProcess.end_idle()


def _urls(variable: str) -> List[str]:
    value = os.environ.get(variable)
    if not value:
        # A missing server is a failure and not a skip: a run without it would look green.
        pytest.fail(f"{variable} is not set. Run `npm test -- test/python`, which starts the servers", pytrace=False)
    return [url.strip() for url in value.split(",")]


@dataclass(frozen=True)
class Sentinel:
    urls: Sequence[str]
    master_name: str


@pytest.fixture(scope="session")
def redis_urls() -> List[str]:
    """The single servers, which do not know of each other: for Redlock."""
    return _urls("HOLDFAST_TEST_REDIS_URL")


@pytest.fixture(scope="session")
def redis_url(redis_urls: List[str]) -> str:
    return redis_urls[0]


@pytest.fixture(scope="session")
def redlock_url(redis_urls: List[str]) -> str:
    return "redlock://" + ",".join(url.split("://", 1)[1] for url in redis_urls)


@pytest.fixture(scope="session")
def cluster_urls() -> List[str]:
    """Nodes of one Cluster, to start a client from."""
    return _urls("HOLDFAST_TEST_REDIS_CLUSTER_URL")


@pytest.fixture(scope="session")
def sentinel() -> Sentinel:
    master_name = os.environ.get("HOLDFAST_TEST_REDIS_SENTINEL_MASTER", "mymaster")
    return Sentinel(_urls("HOLDFAST_TEST_REDIS_SENTINEL_URL"), master_name)


@pytest.fixture(scope="session")
def postgres_url() -> str:
    return _urls("HOLDFAST_TEST_POSTGRES_URL")[0]


@pytest.fixture(scope="session")
def pgbouncer_url() -> str:
    """A pooler in transaction mode before the same server."""
    return _urls("HOLDFAST_TEST_PGBOUNCER_URL")[0]


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """A file that does not exist yet, in a folder of the test's own."""
    return tmp_path / "locks.db"


@pytest.fixture
def sqlite_url(sqlite_path: Path) -> str:
    return f"sqlite:{sqlite_path}"


@pytest.fixture
def lock_name() -> str:
    return unique("lock")


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """Makes names that no other test has, from a word that says what they name."""
    return unique


@pytest.fixture
async def node_worker() -> AsyncIterator[Callable[..., Awaitable[NodeWorker]]]:
    """Runs programs in Node processes on the built TypeScript client, and ends them after the test."""
    workers: List[NodeWorker] = []

    async def start(source: str, **options: Any) -> NodeWorker:
        worker = await NodeWorker.start(source, **options)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        await worker.end()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts Redis servers that the test may kill or pause, and kills them after the test."""
    servers: List[RedisServer] = []

    def start(*options: str) -> RedisServer:
        server = RedisServer(tmp_path, options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.kill()
