"""Prometheus metrics of the server; without prometheus_client nothing is counted."""

from __future__ import annotations

from typing import Any

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class _Uncounted:
    """Takes the calls of any metric."""

    def labels(self, *values: str) -> _Uncounted:
        return self

    def inc(self, amount: float = 1) -> None: ...

    def dec(self, amount: float = 1) -> None: ...

    def set(self, value: float) -> None: ...

    def observe(self, value: float) -> None: ...


class Metrics:
    """The metrics of one server, in a registry of their own if `counted`."""

    def __init__(self, counted: bool = False) -> None:
        self.registry: Any = None
        if counted:
            import prometheus_client

            self.registry = prometheus_client.CollectorRegistry()

        def metric(kind: str, name: str, about: str, *labels: str, **options: Any) -> Any:
            if not counted:
                return _Uncounted()
            return getattr(prometheus_client, kind)(f"unmask_{name}", about, labels, registry=self.registry, **options)

        self.requests = metric("Counter", "requests", "Requests by endpoint and status.", "endpoint", "status")
        self.open_requests = metric("Gauge", "open_requests", "Requests that are being answered.")
        self.queued_rows = metric("Gauge", "queued_rows", "Texts that wait for room.")
        self.running_rows = metric("Gauge", "running_rows", "Texts that are being written.")
        self.network_calls = metric("Counter", "network_calls", "Network calls.")
        self.batch_size = metric("Histogram", "batch_size", "Rows per network call.", buckets=ROWS)
        self.tokens = metric("Counter", "generated_tokens", "Tokens written; its rate is tokens per second.")
        self.latency = metric("Histogram", "request_seconds", "Time to answer.", "endpoint", buckets=SECONDS)
        self.first_event = metric("Histogram", "first_event_seconds", "Time to the first event.", buckets=SECONDS)

    def render(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        import prometheus_client

        return prometheus_client.generate_latest(self.registry)
