"""Connections over a socket."""

from __future__ import annotations

import socket
import threading

import pytest
import uvicorn

from unmask.serving import server

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def address(monkeypatch):
    """A server that waits half a second for headers."""
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.5)
    listener = server.bind("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(app, http=server.Connection, lifespan="off", timeout_keep_alive=1))
    thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
    thread.start()
    yield listener.getsockname()
    running.should_exit = True
    thread.join(10)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", REQUEST], ids=["nothing", "half a line", "half the headers"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_a_connection_whose_headers_do_not_arrive_is_closed(address, earlier, sent):
    with socket.create_connection(address, timeout=20) as client:
        for _ in range(earlier):
            client.sendall(REQUEST + b"\r\n")
            assert client.recv(1 << 12).startswith(b"HTTP/1.1 200")
        client.sendall(sent)
        assert client.recv(1 << 12) == b""


def test_slow_headers_that_arrive_in_time_are_answered(address):
    with socket.create_connection(address, timeout=20) as client:
        for part in (REQUEST[:5], REQUEST[5:], b"\r\n"):
            client.sendall(part)
        assert client.recv(1 << 12).startswith(b"HTTP/1.1 200")
