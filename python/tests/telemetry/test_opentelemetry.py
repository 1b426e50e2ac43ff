"""Metrics and spans for OpenTelemetry, as its SDK exports them."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Dict, Iterator, List

import pytest

REASON = "Debian has no package of OpenTelemetry for Python: pip install opentelemetry-sdk"
pytest.importorskip("opentelemetry.sdk.trace", reason=REASON)

from opentelemetry.sdk.metrics import MeterProvider  # noqa: E402
from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: E402
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import StatusCode, get_current_span  # noqa: E402

from holdfast import (  # noqa: E402
    DistributedLock,
    InvalidArgumentError,
    LeaseLostError,
    StoreError,
    SyncDistributedLock,
)
from holdfast._telemetry.metrics import LABELS, METRICS  # noqa: E402
from holdfast.opentelemetry import open_telemetry, trace_metadata  # noqa: E402


class Telemetry:
    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("the application")
        self._meters = MeterProvider([self.reader])
        self._open: List[Callable[[], None]] = []

    def __call__(self, **options: Any) -> None:
        options = {"templates": ["order:{id}"], "spans": True, "metrics": True, **options}
        telemetry = open_telemetry(meter_provider=self._meters, tracer_provider=self.tracers, **options)
        self._open.append(telemetry.close)

    def close(self) -> None:
        for close in self._open:
            close()
        self._meters.shutdown()

    def named(self, name: str) -> List[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self) -> Dict[str, Any]:
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.close()


async def test_the_metrics_have_the_names_units_buckets_and_attributes_of_the_reference(telemetry):
    telemetry(spans=False)
    async with DistributedLock("memory:") as lock:
        async with lock.lock("order:1", timeout_seconds=0.3):
            renewed = asyncio.Event()
            lock.on("renewed", lambda _: renewed.set())
            await renewed.wait()
            found = telemetry.points()
        released = telemetry.points()
    for name, metric in METRICS.items():
        if f"holdfast.{name}" in found:
            seen = found[f"holdfast.{name}"]
            assert (seen.unit, seen.description) == (metric.unit, metric.help)
            labels = {LABELS[label] for label in metric.labels}
            assert {key for point in seen.data.data_points for key in point.attributes} <= labels
            for point in seen.data.data_points if metric.buckets else ():
                assert tuple(point.explicit_bounds) == metric.buckets
    assert {"holdfast.lock.wait.duration", "holdfast.lock.held", "holdfast.store.errors"} <= set(found)
    held = [points["holdfast.lock.held"].data.data_points for points in (found, released)]
    assert [[(dict(point.attributes), point.value) for point in points] for points in held] == [
        [({"holdfast.lock.template": "order:{id}"}, value)] for value in (1, 0)
    ]
    assert telemetry.named("acquire order:{id}") == []


async def test_a_block_has_a_span_that_is_active_inside_it_and_a_waiter_links_to_it(telemetry):
    telemetry(metrics=False)
    async with DistributedLock("memory:", holder_id="me") as lock, DistributedLock("memory:") as rival:
        with telemetry.tracer.start_as_current_span("request") as request:
            async with lock.lock("order:1") as lease:
                inside = get_current_span()
                other = asyncio.create_task(waiting(telemetry, rival))
                waits = asyncio.Event()
                rival.on("waiting", lambda _: waits.set())
                await waits.wait()
            assert get_current_span() is request
        await other
    first, second = telemetry.named("acquire order:{id}")
    locked = telemetry.named("locked order:{id}")[0]
    assert locked.context == inside.get_span_context()
    assert first.parent == locked.parent == request.get_span_context()
    assert [dict(link.attributes) for link in second.links] == [{"holdfast.link": "blocker"}]
    assert second.links[0].context == locked.context
    base = {
        "holdfast.lock.template": "order:{id}",
        "holdfast.lock.name": "order:1",
        "holdfast.holder.id": "me",
    }
    assert locked.attributes == {**base, "holdfast.fencing_token": lease.fencing_token}
    assert first.attributes == {
        **base,
        "holdfast.outcome": "acquired",
        "holdfast.waited": False,
        "holdfast.fencing_token": lease.fencing_token,
    }
    assert second.attributes["holdfast.waited"] and second.attributes["holdfast.waiters.ahead"] == 0
    assert second.attributes["holdfast.blocker.fencing_token"] == lease.fencing_token
    assert second.start_time < locked.end_time <= second.end_time + 10**9
    assert {span.status.status_code for span in telemetry.exporter.get_finished_spans()} == {StatusCode.UNSET}


async def waiting(telemetry: Telemetry, lock: DistributedLock) -> None:
    with telemetry.tracer.start_as_current_span("other"):
        await (await lock.hold("order:1", blocking=True)).release()


async def test_a_block_that_fails_or_loses_its_lease_says_so_and_names_are_hidden_on_request(telemetry):
    telemetry(metrics=False, lock_names=False)
    async with DistributedLock("memory:") as lock:
        with pytest.raises(RuntimeError):
            async with lock.lock("order:2"):
                raise RuntimeError("order:2 is secret")
        with pytest.raises(LeaseLostError):
            async with lock.lock("order:3"):
                await lock.force_release("order:3", by="me")
                await asyncio.sleep(60)
        async with lock.lock("order:4"):
            async with lock.lock("order:4"):
                pass
    failed, lost, _ = telemetry.named("locked order:{id}")
    assert failed.status.status_code is StatusCode.ERROR and failed.attributes["error.type"] == "RuntimeError"
    assert [(event.name, dict(event.attributes)) for event in lost.events] == [
        ("holdfast.lease.lost", {"holdfast.reason": "force-released"})
    ]
    assert "order:2" not in "".join(span.to_json() for span in telemetry.exporter.get_finished_spans())


async def test_an_outage_is_an_error_of_a_claim_and_a_refusal_or_a_cancellation_is_none(telemetry):
    telemetry(metrics=False)
    async with DistributedLock("memory:") as lock:
        await lock.hold("order:5")
        assert not await lock.acquire("order:5")
        waiter = asyncio.create_task(lock.acquire("order:5", blocking=True))
        waits = asyncio.Event()
        lock.on("waiting", lambda _: waits.set())
        await waits.wait()
        waiter.cancel()
        await asyncio.wait({waiter})
    dead = DistributedLock("redis://127.0.0.1:1")
    with pytest.raises(StoreError):
        await dead.acquire("order:5")
    await dead.close(deadline_seconds=0.2)
    spans = telemetry.named("acquire order:{id}")
    ends = [(span.attributes["holdfast.outcome"], span.attributes.get("error.type")) for span in spans]
    assert [(*end, span.status.status_code) for end, span in zip(ends, spans)] == [
        ("acquired", None, StatusCode.UNSET),
        ("refused", None, StatusCode.UNSET),
        ("failed", "CancelledError", StatusCode.UNSET),
        ("failed", "STORE_UNAVAILABLE", StatusCode.ERROR),
    ]


async def test_the_span_of_another_process_is_linked_by_the_metadata_of_its_lease(telemetry):
    telemetry(metrics=False)
    assert trace_metadata() == {}
    async with DistributedLock("memory:") as lock, DistributedLock("memory:") as rival:
        with telemetry.tracer.start_as_current_span("elsewhere") as span:
            metadata = trace_metadata()
        telemetry.close()  # what holds the lock is not observed
        await lock.hold("order:6", metadata=metadata)
        again = Telemetry()
        again(metrics=False)
        assert not await rival.acquire("order:6")
        (refused,) = again.named("acquire order:{id}")
        again.close()
    context = refused.links[0].context
    assert (context.trace_id, context.span_id, context.is_remote) == (
        span.get_span_context().trace_id,
        span.get_span_context().span_id,
        True,
    )


def test_the_synchronous_api_has_the_same_spans_in_the_thread_of_its_caller(telemetry):
    telemetry(metrics=False)
    with SyncDistributedLock("memory:") as lock, telemetry.tracer.start_as_current_span("request") as request:
        with lock.lock("order:7"):
            inside = get_current_span().get_span_context()
        assert get_current_span() is request
        generator = holding(lock)
        next(generator)
        assert get_current_span() is request, "the generator is suspended"
        generator.close()
    first, in_generator = telemetry.named("locked order:{id}")
    assert first.context == inside and first.parent == in_generator.parent == request.get_span_context()
    assert [span.parent for span in telemetry.named("acquire order:{id}")] == [request.get_span_context()] * 2


def holding(lock: SyncDistributedLock) -> Any:
    with lock.lock("order:8"):
        yield


async def test_a_tracer_that_fails_costs_a_warning_and_nothing_else(telemetry, caplog, monkeypatch):
    telemetry(metrics=False)

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no tracer")

    tracer = telemetry.tracers.get_tracer("holdfast")
    monkeypatch.setattr(type(tracer), "start_span", fails)
    async with DistributedLock("memory:") as lock:
        async with lock.lock("order:9") as lease:
            assert lease.held
    assert "OpenTelemetry raised an error" in caplog.text


def test_options_of_another_type_are_refused():
    with pytest.raises(InvalidArgumentError, match="spans must be True or False"):
        open_telemetry(spans="no")  # type: ignore[arg-type]
