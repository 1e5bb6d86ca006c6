"""A server of the small models of the tests, and a client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from fastapi.testclient import TestClient

from unmask.serving.api import Limits
from unmask.serving.app import create_app

LIMITS = Limits(requests=8, seconds=30, body_bytes=1 << 16, body_seconds=1, texts=8, tokens=200, steps=100, particles=8)


@pytest.fixture(scope="session")
def client(mdlm, ar) -> Iterator[TestClient]:
    with TestClient(create_app({"mdlm": mdlm, "ar": ar}, limits=LIMITS), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def post(client):
    """Send a JSON object and return the answer, which must be a success."""

    def send(path: str, **body: Any) -> Any:
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return send


@pytest.fixture
def events(client):
    """Send a JSON object and return the server-sent events of the answer."""

    def send(path: str, **body: Any) -> list[Any]:
        answer = client.post(path, json=body)
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    return send
