"""Refusals: one sentence in OpenAI's shape, whatever is sent; the key; bounds on time, size and number."""

from __future__ import annotations

import asyncio
import json
import random
import time

import pytest
from fastapi.testclient import TestClient

from unmask.serving.api import Limits
from unmask.serving.app import create_app

DEEP = "[" * 5000 + "]" * 5000


def check_refusal(answer, status: int) -> str:
    """The sentence of a refusal."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    assert error["message"][-1] in ".?"
    return error["message"]


BAD = [
    ("/v1/completions", {"n": "x"}, "n"),
    ("/v1/completions", {"n": 10**30}, "texts"),
    ("/v1/completions", {"max_tokens": 10**18}, "200 tokens"),
    ("/v1/completions", {"max_tokens": -1}, "max_tokens"),
    ("/v1/completions", {"steps": 10**12}, "steps"),
    ("/v1/completions", {"sampler": {"name": "remdm", "steps": 4000}}, "steps must be at most 100"),
    ("/v1/completions", {"sampler": {"name": "ordered", "order": [1]}}, "order"),
    ("/v1/completions", {"sampler": "nothing"}, "nothing"),
    ("/v1/completions", {"order": "sideways"}, "sideways"),
    ("/v1/completions", {"temperature": -1}, "temperature must be"),
    ("/v1/completions", {"seed": 2**63}, "seed"),
    ("/v1/completions", {"seed": 2**63 - 1, "n": 2}, "seed"),
    ("/v1/completions", {"prompt": 3}, "prompt must be a valid string, got 3."),
    ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": "[MASK:0]"}, "blank"),
    ("/v1/completions", {"promt": "a"}, "promt is not a known field, got 'a'."),
    ("/v1/completions", {"particles": 9}, "particles"),
    ("/v1/completions", {"frequency_penalty": 1.0}, "frequency_penalty"),
    ("/v1/completions", {"constraint": {"match": "("}}, "("),
    ("/v1/completions", {"constraint": {"match": "(a|b)*a(a|b){30}"}}, "expression"),
    ("/v1/completions", {"constraint": {"match": "((a{1,500}){1,500}){1,500}"}}, "expression"),
    ("/v1/completions", {"constraint": {"match": "(" * 3000 + ")" * 3000}}, "expression"),
    ("/v1/completions", {"constraint": {"match": "|".join(str(i) * 50 for i in range(400))}}, "expression"),
    ("/v1/completions", {"constraint": {"with": ["a"] * 65}}, "with"),
    ("/v1/completions", {"constraint": {"characters": [5, 2]}}, "low"),
    ("/v1/completions", {"constraint": {"with": ["x" * 500]}}, ""),
    ("/v1/completions", {"response_format": {"type": "json_schema"}}, "response_format"),
    ("/v1/completions", {"window": 10**9}, "window"),
    ("/v1/completions", {"model": "ar", "order": "confidence"}, "autoregressive"),
    ("/v1/completions", {"model": "ar", "suffix": "x"}, "autoregressive"),
    ("/v1/fill", {"text": "no blank"}, "blank"),
    ("/v1/fill", {}, "text"),
    ("/v1/fill", {"tokens": [[10**9]]}, "Token ids"),
    ("/v1/fill", {"tokens": [[]]}, "tokens"),
    ("/v1/fill", {"text": "[MASK:2-99999]"}, "lengths"),
    ("/v1/edit", {"text": ""}, "tokens"),
    ("/v1/edit", {"text": "abc", "spans": [[0, 9]]}, "span"),
    ("/v1/edit", {"text": "abc", "spans": [[0, 1, 2]]}, "spans"),
    ("/v1/edit", {"text": "abc", "strength": 7.0}, "strength"),
    ("/v1/score", {"text": ""}, "tokens"),
    ("/v1/score", {"text": "a" * 500}, "200 tokens"),
    ("/v1/score", {"text": ["a"] * 9}, "texts"),
    ("/v1/choose", {"text": "a[MASK]", "choices": ["a"]}, "choices"),
    ("/v1/choose", {"text": "a", "choices": ["a", "b"]}, "[MASK]"),
    ("/infill", {"n_predict": "many"}, "n_predict"),
]


@pytest.mark.parametrize(("path", "body", "names"), BAD, ids=lambda value: str(value)[:50])
def test_bad_requests_are_refused_in_one_sentence(client, path, body, names):
    start = time.monotonic()
    message = check_refusal(client.post(path, json=body), 400)
    assert names in message
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe{}", b'{"prompt": "\xff"}', DEEP.encode()],
    ids=lambda body: repr(body)[:20],
)
def test_bodies_that_are_no_object_are_refused(client, body):
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert check_refusal(answer, 400).startswith("The body must be a JSON object")


def test_lone_surrogates_and_unusual_numbers_are_refused(client):
    for body in (
        '{"prompt": "\\ud800"}',
        '{"model": "\\ud800"}',
        '{"order": "\\ud800"}',
        '{"sampler": "\\ud800"}',
        '{"\\ud800": 1}',
        '{"temperature": NaN}',
        '{"temperature": 1e999}',
        '{"n": 1' + "0" * 5000 + "}",
    ):
        answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        check_refusal(answer, 404 if "model" in body else 400)


def test_unknown_things_are_named(client):
    assert "'nobody'" in check_refusal(client.post("/v1/completions", json={"model": "nobody"}), 404)
    check_refusal(client.get("/v1/models/nobody"), 404)
    check_refusal(client.get("/v1/nothing"), 404)
    check_refusal(client.get("/v1/completions"), 405)


def test_random_requests_never_fail(client):
    """Random values in random fields: an answer or a refusal, never an error of the server."""
    rng = random.Random(0)
    values = [None, True, -1, 0, 1, 2, 7, 0.5, 1e308, 10**25, "", "a", "[MASK]", "[MASK:2-3]", "\x00", "é" * 9, [], {}]
    values += [["a"], [["a"]], [[0, 1]], {"name": "remdm"}, {"match": "a*"}, [None], "confidence", "ancestral"]
    fields = ["prompt", "suffix", "max_tokens", "n", "seed", "temperature", "top_p", "stop", "logprobs", "steps"]
    fields += ["order", "sampler", "constraint", "text", "tokens", "spans", "strength", "given", "choices", "top"]
    paths = ["/v1/completions", "/v1/fill", "/v1/edit", "/v1/score", "/v1/choose", "/infill", "/v1/fim/completions"]
    for _ in range(100):
        body = {field: rng.choice(values) for field in rng.sample(fields, rng.randint(0, 4))}
        answer = client.post(rng.choice(paths), json=body)
        assert answer.status_code in (200, 400), (body, answer.text)
        if answer.status_code == 400:
            check_refusal(answer, 400)


def test_no_path_of_the_server_is_told(client, mdlm, mdlm_folder):
    message = check_refusal(client.post("/v1/completions", json={"order": "planner"}), 400)
    assert str(mdlm_folder) not in message
    assert "mdlm" in message


def test_a_key_is_needed_everywhere_but_for_the_page_and_health(mdlm):
    with TestClient(create_app({"mdlm": mdlm}, api_key="secret")) as client:
        for key in (None, "Bearer wrong", "secret", "Bearer "):
            headers = {} if key is None else {"authorization": key}
            check_refusal(client.get("/v1/models", headers=headers), 401)
            check_refusal(client.post("/v1/completions", json={}, headers=headers), 401)
            check_refusal(client.get("/metrics", headers=headers), 401)
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200


def test_no_other_origin_is_allowed(client):
    answer = client.get("/v1/models", headers={"origin": "http://elsewhere.test"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_local_server_answers_for_its_own_names_only(mdlm):
    with TestClient(create_app({"mdlm": mdlm}, hosts=["localhost", "::1"]), base_url="http://localhost:8000") as client:
        for host in ("localhost", "LocalHost:80", "[::1]", "[::1]:8000"):
            assert client.get("/health", headers={"host": host}).status_code == 200
        for host in ("elsewhere.test:8000", "localhost.elsewhere.test", ""):
            check_refusal(client.get("/health", headers={"host": host}), 403)


def test_large_bodies_are_refused(client):
    check_refusal(client.post("/v1/completions", json={"prompt": "a" * (1 << 17)}), 413)

    def pieces():
        for _ in range(100):
            yield b"a" * 1024

    check_refusal(client.post("/v1/completions", content=pieces()), 413)


def call_app(app, messages, wait: float = 0.0, reads: bool = True) -> list[dict]:
    """The messages that an application sends for a request whose body comes in pieces."""
    sent = []

    async def receive():
        if messages:
            return messages.pop(0)
        await asyncio.sleep(wait)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if not reads:
            await asyncio.sleep(60)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    return sent


def test_a_slow_body_is_refused(client):
    sent = call_app(client.app, [{"type": "http.request", "body": b"{", "more_body": True}], wait=10)
    assert sent[0]["status"] == 408
    assert "within 1 seconds" in json.loads(sent[1]["body"])["error"]["message"]
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_client_that_goes_before_its_body_is_no_error_of_the_server(client):
    assert call_app(client.app, []) == []
    text = client.get("/metrics").text
    assert 'endpoint="other",status="499"' in text
    assert 'status="500"' not in text


def test_a_client_that_does_not_read_its_answer_leaves(mdlm):
    app = create_app({"mdlm": mdlm}, limits=Limits(seconds=0.5, body_seconds=0.5))
    body = [{"type": "http.request", "body": b'{"max_tokens": 2}', "more_body": False}]
    sent = call_app(app, body, wait=60, reads=False)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert app.state.service.metrics.open_requests._value.get() == 0
    app.state.service.close()


def test_a_full_server_says_when_to_come_back(mdlm):
    app = create_app({"mdlm": mdlm}, limits=Limits(requests=1))

    async def visit():
        from httpx import ASGITransport, AsyncClient

        async with AsyncClient(transport=ASGITransport(app), base_url="http://test", timeout=60) as client:
            answers = [client.post("/v1/completions", json={"max_tokens": 40}) for _ in range(4)]
            return await asyncio.gather(*answers)

    statuses = {}
    for answer in asyncio.run(visit()):
        statuses.setdefault(answer.status_code, []).append(answer)
    assert len(statuses[200]) == 1
    for refused in statuses[429]:
        check_refusal(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
    app.state.service.close()


def test_a_request_has_a_time_limit(mdlm):
    with TestClient(create_app({"mdlm": mdlm}, limits=Limits(seconds=0.05)), raise_server_exceptions=False) as client:
        message = check_refusal(client.post("/v1/completions", json={"n": 64, "max_tokens": 48}), 503)
        assert "time" in message


def test_the_page_is_open_and_hides_no_endpoint(mdlm, tmp_path, monkeypatch):
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / "app.js").write_text("1")
    monkeypatch.setattr("unmask.serving.app.PLAYGROUND", tmp_path)
    with TestClient(create_app({"mdlm": mdlm}, api_key="secret"), raise_server_exceptions=False) as client:
        assert client.get("/").text == "<p>page</p>"
        assert client.get("/playground/app.js").text == "1"
        check_refusal(client.get("/playground/..%2f..%2fapp.py"), 404)
        headers = {"authorization": "Bearer secret"}
        check_refusal(client.get("/v1/completions", headers=headers), 405)
        check_refusal(client.get("/nothing", headers=headers), 404)
