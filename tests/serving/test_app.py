"""The HTTP API: the library's texts in the formats of OpenAI, Mistral and llama.cpp, canvases, scores and choices."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from unmask.serving.app import create_app

PROMPT, SUFFIX = "The cat ", " sat."


def length(*texts: str, blank: int) -> int:
    return sum(map(len, texts)) + blank  # a byte is a token


def test_completions_are_the_texts_of_generate(post, mdlm):
    answer = post("/v1/completions", model="mdlm", prompt=[PROMPT, "b"], max_tokens=9, n=2, seed=5, steps=4, echo=True)
    texts = mdlm.generate(2, prompt=PROMPT, length=length(PROMPT, blank=9), seed=5, steps=4)
    texts += mdlm.generate(2, prompt="b", length=10, seed=7, steps=4)
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 36, "total_tokens": 45}


def test_the_answer_is_what_stands_between_prompt_and_suffix(post, mdlm):
    options = {"prompt": PROMPT, "suffix": SUFFIX, "seed": 1, "steps": 3}
    answer = post("/v1/completions", max_tokens=6, **options)
    (whole,) = mdlm.generate(length=length(PROMPT, SUFFIX, blank=6), **options)
    assert PROMPT + answer["choices"][0]["text"] + SUFFIX == whole
    fim = post("/v1/fim/completions", prompt=PROMPT, suffix=SUFFIX, random_seed=1, steps=3, max_tokens=6)
    assert fim["choices"][0]["message"]["content"] == answer["choices"][0]["text"]
    infill = post("/infill", input_prefix=PROMPT, input_suffix=SUFFIX, seed=1, steps=3, n_predict=6)
    assert (infill["content"], infill["stop"]) == (answer["choices"][0]["text"], True)


def test_a_seed_is_chosen_and_told(post):
    first = post("/v1/completions", max_tokens=4)["choices"][0]
    again = post("/v1/completions", max_tokens=4, seed=first["unmask"]["seed"])["choices"][0]
    assert again == first


def test_stop_words_end_a_text(post):
    whole = post("/v1/completions", max_tokens=20, seed=3)["choices"][0]["text"]
    word = whole[8:10]
    answer = post("/v1/completions", max_tokens=20, seed=3, stop=["never", word])["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == (whole[: whole.index(word)], "stop")


def test_logprobs_are_those_of_the_written_tokens(post):
    answer = post("/v1/completions", prompt="ab", max_tokens=5, seed=3, logprobs=1)["choices"][0]
    logprobs = answer["logprobs"]
    assert len(logprobs["token_logprobs"]) == 5
    assert all(value < 0 for value in logprobs["token_logprobs"])
    assert "".join(logprobs["tokens"]) == answer["text"]


@pytest.mark.parametrize("model", ["mdlm", "ar"])
@pytest.mark.parametrize("options", [{}, {"stop": ["zz"]}, {"n": 2}])
def test_streamed_text_adds_up_to_the_answer(post, events, model, options):
    body = {"model": model, "prompt": "ab", "max_tokens": 12, "seed": 2, **options}
    expected = [choice["text"] for choice in post("/v1/completions", **body)["choices"]]
    *chunks, usage, done = events("/v1/completions", **body, stream=True, stream_options={"include_usage": True})
    texts = [""] * len(expected)
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert (texts, done) == (expected, "[DONE]")
    assert usage["usage"]["completion_tokens"] == 12 * len(expected)
    assert len(chunks) > len(expected)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_sampler_that_rewrites_streams_text_at_the_end(events):
    chunks = events("/v1/completions", prompt="ab", max_tokens=12, seed=2, stream=True, sampler="remdm", steps=8)
    assert len(chunks) == 2


def test_infill_and_fim_stream_in_their_own_shapes(events):
    chunks = events("/infill", input_prefix="a", n_predict=6, seed=1, stream=True)
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    *chunks, done = events("/v1/fim/completions", prompt="a", suffix="b", max_tokens=6, seed=1, stream=True)
    assert done == "[DONE]"
    assert all("content" in chunk["choices"][0]["delta"] for chunk in chunks)


@pytest.mark.parametrize("sampler", ["ancestral", "remdm"])
def test_canvases_replay_to_the_finished_text(events, mdlm, sampler):
    options = {"sampler": sampler, "steps": 6, "seed": 4}
    first, *deltas, last, done = events("/v1/completions", prompt="ab", max_tokens=10, diffusing=True, n=1, **options)
    canvas = [(token["id"], token["text"]) for token in first["tokens"]]
    assert [token["given"] for token in first["tokens"]] == [True] * 2 + [False] * 10
    for delta in deltas:
        assert delta["object"] == "canvas.delta"
        for change in delta["changes"]:
            canvas[change["position"]] = (change["id"], change["text"])
    (whole,) = mdlm.sample(prompt="ab", length=12, **options)
    assert [token for token, _ in canvas] == whole.ids
    assert "".join(text for _, text in canvas) == last["text"] == whole.text
    assert (last["object"], last["call"], done) == ("canvas.done", whole.calls, "[DONE]")


def test_fill_gives_tokens_and_alternatives(post, mdlm):
    text = "a [MASK:2] c"
    answer = post("/v1/fill", text=[text, "[MASK]b"], seed=3, steps=1, top=2)
    first, second = answer["data"]
    assert [first["text"], second["text"]] == mdlm.fill([text, "[MASK]b"], seed=3, steps=1)
    assert [token["given"] for token in first["tokens"]] == [True, True, False, False, True, True]
    best = mdlm.top_tokens(text, 2)[0]
    assert [[one["text"] for one in mask] for mask in first["alternatives"]] == [[t for t, _ in mask] for mask in best]
    row = [None if not token["given"] else token["id"] for token in first["tokens"]]
    assert post("/v1/fill", tokens=[row], seed=3, steps=1)["data"][0]["text"] == first["text"]


def test_edit_rewrites_as_the_library_does(post, mdlm):
    for places in ({"spans": [[4, 7]]}, {"strength": 0.5}, {"keep": ["cat"]}):
        answer = post("/v1/edit", text="The cat sat.", seed=2, **places)
        assert answer["data"][0]["text"] == mdlm.edit_details("The cat sat.", seed=2, **places).text


def test_score_has_both_errors(post, mdlm, ar):
    texts = ["The cat sat.", "A dog."]
    answer, bound = post("/v1/score", text=texts, seed=1), mdlm.score(texts, seed=1)
    assert [one["nats"] for one in answer["data"]] == pytest.approx([one.nats for one in bound])
    unit = answer["total"]["bits_per_char"]
    assert unit["value"] == pytest.approx(bound.bits_per_char)
    assert unit["monte_carlo_error"] == pytest.approx(bound.error("bits_per_char"))
    assert unit["data_error"] == pytest.approx(bound.error("bits_per_char", "data"))
    exact = post("/v1/score", model="ar", text="A dog.", given="x")
    assert exact["data"][0]["exact"]
    assert exact["data"][0]["nats"] == pytest.approx(ar.score("A dog.", "x").nats)


def test_choose_gives_probabilities(post):
    answer = post("/v1/choose", text="a[MASK]c", choices=["b", "d"])
    assert answer["exact"]
    assert sum(one["probability"] for one in answer["data"]) == pytest.approx(1)


def test_models_are_listed(client):
    (mdlm, ar) = client.get("/v1/models").json()["data"]
    assert (mdlm["id"], ar["id"]) == ("mdlm", "ar")
    assert mdlm["unmask"]["length"] == 48
    assert (ar["unmask"]["causal"], ar["unmask"]["orders"], ar["unmask"]["samplers"]) == (True, [], [])
    assert client.get("/v1/models/ar").json() == ar


def test_the_specification_tells_of_errors_and_streams(client):
    paths = client.get("/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for operation in methods.values():
            assert set(operation["responses"]) == {"200", "4XX", "5XX"}, path
    assert "text/event-stream" in paths["/v1/fill"]["post"]["responses"]["200"]["content"]
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}


def test_metrics_count(client, post):
    post("/v1/completions", max_tokens=4)
    text = client.get("/metrics").text
    for name in ("requests_total", "queued_rows", "batch_size_bucket", "network_calls_total", "generated_tokens_total"):
        assert f"unmask_{name}" in text
    assert 'endpoint="/v1/completions",status="200"' in text


def test_a_schema_constrains_the_answer(post):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    answer = post("/v1/completions", prompt="x = ", max_tokens=12, response_format=form, seed=1)
    assert isinstance(json.loads(answer["choices"][0]["text"])["a"], bool)


def test_constraints_hold(post):
    answer = post("/v1/completions", prompt="a", max_tokens=9, constraint={"match": "a[bc]*", "with": ["abcbcbcbcb"]})
    assert answer["choices"][0]["text"] == "bcbcbcbcb"


def test_a_client_that_goes_away_stops_its_request(mdlm):
    app = create_app({"mdlm": mdlm})
    service, body = app.state.service, json.dumps({"max_tokens": 47, "n": 16, "diffusing": True}).encode()
    sent, gone = [], asyncio.Event()

    async def visit() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if len(sent) > 20:
                gone.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "scheme": "http",
            "server": ("localhost", 80),
            "client": ("localhost", 1),
        }
        await app(scope, receive, send)

    asyncio.run(asyncio.wait_for(visit(), 60))
    deadline = time.monotonic() + 20
    while not service.scheduler._is_idle() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service.scheduler._is_idle()
    assert not any(b"canvas.done" in message.get("body", b"") for message in sent)
    service.close()
    assert not [thread for thread in threading.enumerate() if thread is service.scheduler._thread]
