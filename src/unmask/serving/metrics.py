"""Prometheus metrics of the server."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "unmask", "registry": self.registry}
        self.requests = Counter("requests", "Requests by endpoint and status.", ("endpoint", "status"), **own)
        self.open_requests = Gauge("open_requests", "Requests that are being answered.", **own)
        self.queued_rows = Gauge("queued_rows", "Texts that wait for room.", **own)
        self.running_rows = Gauge("running_rows", "Texts that are being written.", **own)
        self.network_calls = Counter("network_calls", "Network calls.", **own)
        self.batch_size: Any = Histogram("batch_size", "Rows per network call.", buckets=ROWS, **own)
        self.tokens = Counter("generated_tokens", "Tokens written; its rate is tokens per second.", **own)
        self.latency = Histogram("request_seconds", "Time to answer.", ("endpoint",), buckets=SECONDS, **own)
        self.first_event = Histogram("first_event_seconds", "Time to the first event.", buckets=SECONDS, **own)

    def render(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
