"""Metrics and spans for OpenTelemetry: the names and attributes of the TypeScript client."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Sequence

from ._observable import Observable
from ._telemetry.metrics import LABELS, METRICS
from ._telemetry.recorder import Recording
from ._telemetry.templates import Templates
from .errors import InvalidArgumentError, MissingClientError

try:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, MeterProvider, Observation
    from opentelemetry.metrics import get_meter
    from opentelemetry.trace import TracerProvider, get_tracer
except ImportError as error:
    raise MissingClientError("holdfast.opentelemetry", ["opentelemetry-api"]) from error

from ._telemetry.links import trace_metadata
from ._telemetry.spans import Spans

__all__ = ["OpenTelemetry", "Templates", "open_telemetry", "trace_metadata"]


class OpenTelemetry:
    """What `open_telemetry` returns."""

    def __init__(self, closes: Sequence[Callable[[], None]]) -> None:
        self._closes = closes

    def close(self) -> None:
        """Ends it."""
        for close in self._closes:
            close()


def open_telemetry(
    *,
    templates: Optional[Templates] = None,
    instances: Optional[Sequence[Observable]] = None,
    metrics: bool = True,
    spans: bool = True,
    lock_names: bool = True,
    meter_provider: Optional[MeterProvider] = None,
    tracer_provider: Optional[TracerProvider] = None,
) -> OpenTelemetry:
    """Reports what the locks, rate limiters and other instances of this process do to OpenTelemetry. Call it once,
    after the SDK has been set up and before the first lock is taken. docs/reference/telemetry.md lists metrics, spans
    and attributes::

        telemetry = open_telemetry(templates=["order:{id}", "cron:{job}"])

    `templates` and `instances` are those of `holdfast.prometheus`. `metrics`: records metrics. `spans`: records a span
    for each claim, and one for each block that runs under a lock. `lock_names`: whether spans have the name of the
    lock, and the messages of errors, which contain it; metrics never have it. `meter_provider` and `tracer_provider`:
    by default the global ones.

    Raises `InvalidArgumentError`.
    """
    for argument, value in (("metrics", metrics), ("spans", spans), ("lock_names", lock_names)):
        if not isinstance(value, bool):
            raise InvalidArgumentError(argument, value, "True or False")
    closes: list[Callable[[], None]] = []
    if metrics:
        closes.append(_Instruments(get_meter("holdfast", meter_provider=meter_provider), templates, instances).close)
    if spans:
        tracer = get_tracer("holdfast", tracer_provider=tracer_provider)
        closes.append(Spans(tracer, templates, instances, lock_names).close)
    return OpenTelemetry(closes)


class _Instruments:
    """The sink of a recording."""

    def __init__(self, meter: Meter, templates: object, instances: object) -> None:
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._recording: Optional[Recording] = None
        for name, metric in METRICS.items():
            full_name, unit, text = f"holdfast.{name}", metric.unit, metric.help
            if metric.kind == "counter":
                self._counters[name] = meter.create_counter(full_name, unit, text)
            elif metric.buckets is not None:
                self._histograms[name] = _histogram(meter, full_name, unit, text, metric.buckets)
            elif unit == "s":
                # Numbers of things can be added up over processes, ages cannot.
                meter.create_observable_gauge(full_name, [self._observer(name)], unit, text)
            else:
                meter.create_observable_up_down_counter(full_name, [self._observer(name)], unit, text)
        self._recording = Recording(templates, instances, self)

    def close(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.close()

    def add(self, name: str, values: Sequence[str], by: int) -> None:
        self._counters[name].add(by, _attributes(name, values))

    def record(self, name: str, values: Sequence[str], seconds: float) -> None:
        self._histograms[name].record(seconds, _attributes(name, values))

    def _observer(self, wanted: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            readings = () if self._recording is None else self._recording.gauges()
            return [
                Observation(value, _attributes(name, values)) for name, values, value in readings if name == wanted
            ]

        return observe


def _histogram(meter: Meter, name: str, unit: str, text: str, buckets: Sequence[float]) -> Histogram:
    advice: Any = {"explicit_bucket_boundaries_advisory": list(buckets)}
    try:
        return meter.create_histogram(name, unit, text, **advice)
    except TypeError:
        # Before version 1.30 of opentelemetry-api, only a view of the SDK can set the buckets.
        return meter.create_histogram(name, unit, text)


def _attributes(name: str, values: Sequence[str]) -> dict[str, str]:
    return {LABELS[label]: value for label, value in zip(METRICS[name].labels, values)}
