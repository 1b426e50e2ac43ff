"""Everything in a URL is understood or refused, and no error shows a password."""

from __future__ import annotations

import pytest
from holdfast.drivers._redis.url import redis_url, redlock_url
from holdfast.drivers.redis import open_redis
from holdfast.drivers.redlock import open_redlock
from holdfast.errors import InvalidArgumentError


def test_the_parts_of_a_redis_url():
    url = redis_url("rediss://me:p%40ss%2Fword@Example.org:7000/3?prefix=app%3A")
    target = url.target
    assert [(each.host, each.port) for each in target.hosts] == [("example.org", 7000)]
    assert (target.cluster, target.tls, target.database) == (False, True, 3)
    assert (target.username, target.password, url.prefix) == ("me", "p@ss/word", "app:")
    assert "p@ss" not in repr(url)


def test_defaults():
    url = redis_url("redis://localhost")
    assert (url.target.hosts[0].port, url.target.database, url.prefix, url.target.tls) == (6379, 0, "lock:", False)
    assert url.target.username is None and url.target.password is None


@pytest.mark.parametrize("scheme, tls, cluster", [
    ("redis", False, False),
    ("rediss", True, False),
    ("valkey", False, False),
    ("valkeys", True, False),
    ("redis+cluster", False, True),
    ("rediss+cluster", True, True),
    ("valkeys+cluster", True, True),
])
def test_schemes(scheme, tls, cluster):
    target = redis_url(f"{scheme}://localhost").target
    assert (target.tls, target.cluster) == (tls, cluster)


def test_a_cluster_and_a_redlock_have_several_hosts():
    cluster = redis_url("redis+cluster://one:1,two:2,[::1]:3")
    assert [(each.host, each.port) for each in cluster.target.hosts] == [("one", 1), ("two", 2), ("::1", 3)]
    redlock = redlock_url("redlock://:pw@one:1,two/2?tls=true&persistent=1&longestTtlSeconds=2.5&prefix=")
    assert [target.hosts[0].host for target in redlock.targets] == ["one", "two"]
    assert all(target.password == "pw" and target.tls and target.database == 2 for target in redlock.targets)
    assert (redlock.persistent, redlock.longest_ttl_seconds, redlock.prefix) == (True, 2.5, "")


@pytest.mark.parametrize("url", [
    "redis://one,two",
    "redis://localhost/x",
    "redis://localhost/01",
    "redis://localhost/65536",
    "redis://localhost/1/2",
    "redis://localhost?prefix=a&prefix=b",
    "redis://localhost?db=1",
    "redis://localhost?prefix=a+b",
    "redis://localhost?prefix=holdfast:",
    "redis://localhost#x",
    "redis://localhost:0",
    "redis://localhost:99999",
    "redis://",
    "redis://user@localhost",
    "redis+cluster://localhost/1",
    "redis://localhost\n",
    "http://localhost",
    "localhost:6379",
])
def test_what_is_not_understood_is_refused(url):
    with pytest.raises(InvalidArgumentError):
        redis_url(url)


@pytest.mark.parametrize("url", [
    "redlock://one,one",
    "redlock://localhost:7,127.0.0.1:7",
    "redlock://[::ffff:127.0.0.1]:7,localhost:7",
    "redlock://one?tls=maybe",
    "redlock://one?longestTtlSeconds=0",
    "redlock://one?quorum=1",
])
def test_what_a_redlock_url_cannot_have_is_refused(url):
    with pytest.raises(InvalidArgumentError):
        redlock_url(url)


@pytest.mark.parametrize("url", [
    "redis://me:s3cr3t@local host",
    "redis://me:s3cr3t@localhost:bad",
    "redis://me:s3cr3t/x@localhost",
    "redis://me:s3cr3t?x@localhost",
    "redis://me:s3cr3t#x@localhost",
    "redis://me:s3cr3t%zz@localhost",
    "redis://s3cr3t@localhost",
    "redis://me:s3cr3t",
    "redis://me:s3cr3t@localhost/x?s3cr3t",
    "redis://me:s3cr3t@one,two",
])
async def test_no_error_shows_a_password(url):
    for open_it, given in ((open_redis, url), (open_redlock, url.replace("redis://", "redlock://"))):
        if given.startswith("redlock") and given.endswith("@one,two"):
            continue
        with pytest.raises(InvalidArgumentError) as caught:
            await open_it(given)
        error = caught.value
        for text in (str(error), repr(error), repr(error.__cause__), repr(error.__context__), repr(error.value)):
            assert "s3cr3t" not in text
