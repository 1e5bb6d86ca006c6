"""The socket, and uvicorn on it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.errors import UnmaskError

HEADER_SECONDS = 15.0
IDLE_SECONDS = 30
SHUTDOWN_SECONDS = 60


class Connection(H11Protocol):
    """An HTTP connection that closes if the headers of a request do not arrive in time. uvicorn has no such limit."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _limit_headers(self) -> None:
        """Set the timer while headers are awaited."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; a port that is taken is told before models are loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        reason = error.strerror or error
        raise UnmaskError(f"Cannot listen on {host}:{port} ({reason}); choose another --port or --host.") from error
    return listener


def run(app: Any, listener: socket.socket) -> None:
    """Serve an application until a signal. The first one finishes the open requests, a second one does not."""
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        lifespan="on",
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=1 << 16,
    )
    uvicorn.Server(config).run(sockets=[listener])
