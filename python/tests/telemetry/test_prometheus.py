"""Metrics for Prometheus: the same series as those of a Node process that does the same."""

from __future__ import annotations

import asyncio
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import DistributedLock, InvalidArgumentError, RateLimiter, StoreError, SyncDistributedLock
from holdfast._telemetry.metrics import METRICS, prometheus_name
from holdfast.prometheus import PrometheusMetrics, prometheus_metrics

TEMPLATES = ["order:{id}", "report", "api:{user}"]

NODE = """
import { DistributedLock, RateLimiter } from 'holdfast'
import { prometheusMetrics } from 'holdfast/prometheus'

expose({
  async scenario(templates, deadUrl) {
    const metrics = prometheusMetrics({ templates })
    const lock = new DistributedLock({ url: 'memory:' })
    const limiter = new RateLimiter({ url: 'memory:', limits: { limit: 1, periodSeconds: 3_600 } })
    const dead = new DistributedLock({ url: deadUrl, callTimeoutSeconds: 1 })

    const renewed = new Promise((resolve) => lock.on('renewed', resolve))
    const held = await lock.hold('order:1', { timeoutSeconds: 0.3 })
    await renewed
    await lock.acquire('order:1')
    const waiting = new Promise((resolve) => lock.on('waiting', resolve))
    const waiter = lock.hold('order:1', { blocking: true })
    await waiting
    await held.release()
    await (await waiter).release()
    const lost = new Promise((resolve) => lock.on('lost', resolve))
    await lock.hold('report')
    await lock.forceRelease('report', { by: 'the test' })
    await lost
    for (const _ of ['allowed', 'denied']) await limiter.consume('api:7')
    await dead.acquire('elsewhere').catch(() => {})

    const text = metrics.text()
    metrics.close()
    await Promise.all([lock, limiter, dead].map((each) => each.close({ deadlineSeconds: 0.2 })))
    return text
  },
})
"""


@pytest.fixture
def metrics() -> Iterator[PrometheusMetrics]:
    metrics = prometheus_metrics(templates=TEMPLATES, registry=CollectorRegistry())
    yield metrics
    metrics.close()


async def scenario(dead_url: str) -> None:
    """What `NODE` does."""
    async with DistributedLock("memory:") as lock, RateLimiter("memory:", limits="1/hour") as limiter:
        held = await lock.hold("order:1", timeout_seconds=0.3)
        await happens(lock, "renewed")
        assert not await lock.acquire("order:1")
        waiter = asyncio.create_task(lock.hold("order:1", blocking=True))
        await happens(lock, "waiting")
        await held.release()
        await (await waiter).release()
        lease = await lock.hold("report")
        await lock.force_release("report", by="the test")
        await lease.lost
        for allowed in (True, False):
            assert bool(await limiter.consume("api:7")) == allowed
    dead = DistributedLock(dead_url, call_timeout_seconds=1)
    with pytest.raises(StoreError):
        await dead.acquire("elsewhere")
    await dead.close(deadline_seconds=0.2)


async def happens(lock: DistributedLock, event: Any) -> None:
    happened = asyncio.Event()
    stop = lock.on(event, lambda _: happened.set())
    await happened.wait()
    stop()


def text_of(metrics: PrometheusMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def series_of(text: str) -> Set[Tuple[Any, ...]]:
    return {
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values_of(text: str, name: str) -> Dict[str, float]:
    """By the value of the label `lock`."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels["lock"]: sample.value for sample in samples}


async def test_python_and_node_have_the_same_series_types_and_texts_for_the_same_work(metrics, node_worker):
    worker = await node_worker(NODE)
    dead_url = "redis://127.0.0.1:1"
    of_node, _ = await asyncio.gather(worker.call("scenario", TEMPLATES, dead_url), scenario(dead_url))
    of_python = text_of(metrics)
    assert series_of(of_python) == series_of(of_node)
    assert comments_of(of_python) == comments_of(of_node)
    # Every metric was compared.
    names = {prometheus_name(name) for name in METRICS}
    found = {name for name, *_ in series_of(of_node)}
    assert {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found} == names
    bucket = "holdfast_lock_wait_duration_seconds_bucket"
    assert (bucket, ("le", "1.0"), ("lock", "report"), ("outcome", "acquired")) in series_of(of_python)
    for name in ("holdfast_lock_contentions_total", "holdfast_lock_handoffs_total", "holdfast_lock_held"):
        assert values_of(of_python, name) == values_of(of_node, name)


def comments_of(text: str) -> List[str]:
    return sorted(line for line in text.splitlines() if line.startswith("#"))


async def test_gauges_show_what_is_held_and_who_waits_now_and_are_gone_after_close(metrics):
    async with DistributedLock("memory:") as lock:
        lease = await lock.hold("order:7")
        waiter = asyncio.create_task(lock.hold("order:7", blocking=True))
        await happens(lock, "waiting")
        text = text_of(metrics)
        assert values_of(text, "holdfast_lock_held") == values_of(text, "holdfast_lock_waiters") == {"order:{id}": 1}
        assert 0 < values_of(text, "holdfast_lock_longest_wait_seconds")["order:{id}"] < 60
        await lease.release()
        await (await waiter).release()
        assert values_of(text_of(metrics), "holdfast_lock_held") == {"order:{id}": 0}
    metrics.close()
    assert metrics._registry._collector_to_names == {}


def test_only_the_given_instances_are_observed():
    registry = CollectorRegistry()
    with SyncDistributedLock("memory:") as seen, SyncDistributedLock("memory:") as unseen:
        metrics = prometheus_metrics(instances=[seen], registry=registry)
        for lock, name in ((seen, "seen"), (unseen, "unseen")):
            with lock.lock(name):
                pass
        assert registry.get_sample_value(
            "holdfast_lock_hold_duration_seconds_count", {"lock": "other", "outcome": "released"}
        ) == 1
        with pytest.raises(ValueError, match="Duplicated"):
            prometheus_metrics(registry=registry)
        metrics.close()
        prometheus_metrics(registry=registry).close()
        with pytest.raises(InvalidArgumentError, match=r"instances\[0\]"):
            prometheus_metrics(instances=[object()], registry=registry)  # type: ignore[list-item]
