"""A real server on the loopback interface, with a free port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Run an ASGI application in a thread and yield its address."""
    import uvicorn

    options = {"host": "127.0.0.1", "port": 0, "log_level": "critical", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
