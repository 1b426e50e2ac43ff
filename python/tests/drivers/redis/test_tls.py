"""A server whose TLS certificate is not accepted: no outage, and no reason to try again."""

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


@pytest.fixture
async def tls_port(tmp_path: Path) -> AsyncIterator[int]:
    """Of a server with a certificate that no authority has signed."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
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
