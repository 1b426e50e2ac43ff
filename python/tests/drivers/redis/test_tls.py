"""TLS, and how a connection logs in."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any, AsyncIterator

import pytest
import redis
import redis.asyncio
from holdfast import DistributedLock, connect
from holdfast.drivers.redis import redis_driver
from holdfast.errors import StoreError

from support.names import unique
from support.polling import until


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of `localhost`, with its key. No authority has signed it."""
    path = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    made = subprocess.run([*command, "-keyout", "-", "-out", "-", *name], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path


@pytest.fixture
async def tls_port(certificate: Path, redis_url: str) -> AsyncIterator[int]:
    """Of a proxy before Redis that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    port = int(redis_url.rpartition(":")[2].partition("/")[0])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("kind", ["url", "cluster url", "asyncio", "sync"])
async def test_a_certificate_that_is_not_accepted_is_told_as_that_and_not_as_an_outage(
    kind: str, tls_port: int
) -> None:
    driver: Any
    if kind == "url":
        driver = await connect(f"rediss://127.0.0.1:{tls_port}")
    elif kind == "cluster url":
        driver = await connect(f"rediss+cluster://127.0.0.1:{tls_port}")
    else:
        made = redis.asyncio.Redis if kind == "asyncio" else redis.Redis
        driver = redis_driver(made(host="127.0.0.1", port=tls_port, ssl=True))
    lock = DistributedLock(driver)
    for waits in (0, 20):
        # It does not wait for what cannot become better.
        with pytest.raises(StoreError, match="certificate verify failed.*TLS certificate is not accepted") as refused:
            await asyncio.wait_for(lock.acquire(unique("tls"), blocking_timeout_seconds=waits), 10)
        assert not refused.value.retryable
    with pytest.raises(StoreError) as refused:
        await asyncio.wait_for(driver.listen(Any), 10)
    assert not refused.value.retryable
    await lock.close()
    await driver.close()


@pytest.mark.parametrize("kind", ["asyncio", "sync"])
@pytest.mark.parametrize("trust", ["authority", "any"])
async def test_a_client_with_tls_holds_and_waits_with_its_own_settings(
    kind: str, trust: str, tls_port: int, certificate: Path, redis_url: str
) -> None:
    made = redis.asyncio.Redis if kind == "asyncio" else redis.Redis
    settings: Any = {"host": "127.0.0.1", "ssl_cert_reqs": "none"}
    if trust == "authority":
        settings = {"host": "localhost", "ssl_ca_certs": str(certificate), "ssl_check_hostname": True}
    driver, name = redis_driver(made(port=tls_port, ssl=True, **settings)), unique("tls")
    lock, other = DistributedLock(driver), DistributedLock(redis_url)
    held = await other.hold(name)
    waiting = asyncio.ensure_future(lock.hold(name, blocking_timeout_seconds=20))
    await until(lambda: driver._subscription._session is not None and driver._subscription._session.is_open)
    await held.release()
    assert (await waiting).fencing_token > held.fencing_token
    await lock.close()
    await other.close()
    await driver.close()


async def test_a_credential_provider_is_asked_with_each_connection(own_redis: Any) -> None:
    server = own_redis()
    redis.Redis(port=server.port).config_set("requirepass", "first word")

    class Provider:
        password = "first word"

        def get_credentials(self) -> Any:
            return (self.password,)

    pool = redis.ConnectionPool(port=server.port, credential_provider=Provider())
    driver = redis_driver(redis.Redis(connection_pool=pool))
    lock = DistributedLock(driver)
    assert await lock.acquire(unique("credentials"))
    redis.Redis(port=server.port, password="first word").config_set("requirepass", "second word")
    Provider.password = "second word"
    await driver.listen(Any)
    await lock.close()
    await driver.close()
