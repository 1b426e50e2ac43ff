"""Metrics for Prometheus, through `prometheus_client`: the names, labels and buckets of the TypeScript client."""

from __future__ import annotations

from typing import Iterator, List, Optional, Sequence, Union

from ._observable import Observable
from ._telemetry.metrics import METRICS, prometheus_name
from ._telemetry.recorder import Recording
from ._telemetry.templates import Templates
from .errors import MissingClientError

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingClientError("holdfast.prometheus", ["prometheus-client"]) from error

__all__ = ["PrometheusMetrics", "Templates", "prometheus_metrics"]


class PrometheusMetrics(Collector):
    """What `prometheus_metrics` returns."""

    def __init__(
        self, templates: Optional[Templates], instances: Optional[Sequence[Observable]], registry: CollectorRegistry
    ) -> None:
        self._counters = {
            name: Counter(prometheus_name(name), metric.help, metric.labels, registry=None)
            for name, metric in METRICS.items()
            if metric.kind == "counter"
        }
        self._histograms = {
            name: Histogram(prometheus_name(name), metric.help, metric.labels, registry=None, buckets=metric.buckets)
            for name, metric in METRICS.items()
            if metric.kind == "histogram" and metric.buckets is not None
        }
        self._recording = Recording(templates, instances, self)
        self._registry = registry
        self._closed = False
        try:
            registry.register(self)
        except BaseException:
            self._recording.close()
            raise

    def close(self) -> None:
        """Stops counting, and removes the metrics from the registry."""
        if not self._closed:
            self._closed = True
            self._recording.close()
            self._registry.unregister(self)

    def collect(self) -> Iterator[Metric]:
        """For the registry: all metrics as they are now."""
        series: dict[str, Union[Counter, Histogram]] = {**self._histograms, **self._counters}
        for native in series.values():
            for family in native.collect():
                # When a series began is not a metric of Holdfast. TypeScript does not expose it, either.
                family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
                if family.samples:
                    yield family
        gauges = {
            name: GaugeMetricFamily(prometheus_name(name), metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
            if metric.kind == "gauge"
        }
        for name, values, value in self._recording.gauges():
            gauges[name].add_metric(values, value)
        yield from (family for family in gauges.values() if family.samples)

    def describe(self) -> List[Metric]:
        """For the registry, which refuses two collectors with one name."""
        return [Metric(prometheus_name(name), metric.help, metric.kind) for name, metric in METRICS.items()]

    def add(self, name: str, values: Sequence[str], by: int) -> None:
        """Of a sink."""
        counter = self._counters[name]
        (counter.labels(*values) if values else counter).inc(by)

    def record(self, name: str, values: Sequence[str], seconds: float) -> None:
        """Of a sink."""
        self._histograms[name].labels(*values).observe(seconds)


def prometheus_metrics(
    *,
    templates: Optional[Templates] = None,
    instances: Optional[Sequence[Observable]] = None,
    registry: CollectorRegistry = REGISTRY,
) -> PrometheusMetrics:
    """Counts what the locks, rate limiters and other instances of this process do, in the registry that your `/metrics`
    shows. Call it once, before the first lock is taken. docs/reference/telemetry.md lists the metrics::

        prometheus_metrics(templates=["order:{id}", "cron:{job}"])
        prometheus_client.start_http_server(9464)

    `templates`: how lock names, and keys of rate limiters, become labels: patterns such as `order:{id}`, where `{id}`
    is one or more characters except `:`, or a function. Everything else is "other", and so is everything without
    `templates`. At most 100: what a function returns beyond them is "other", too.

    `instances`: the locks, limiters and other instances to observe. By default all of this process, also those that are
    created later.

    Raises `InvalidArgumentError`, and `ValueError` if the registry has them already.
    """
    return PrometheusMetrics(templates, instances, registry)
