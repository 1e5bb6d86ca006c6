"""A small server of the playground: its files, and the routes that the page calls, each a method of the library."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import pairwise
from typing import Any

from unmask.errors import UnmaskError
from unmask.pipeline import MaskedDiffusionLM
from unmask.text_processor import Generation, PieceReader

PAGE = files("unmask") / "serving" / "playground"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "txt": "text/plain"}
OPTIONS = ("steps", "seed", "order", "sampler", "temperature", "top_p", "greedy")


class Playground(ThreadingHTTPServer):
    """Serves models by name on a free port of the loopback interface; `delay` is the time between two events.

    `bodies` are the requests so far, by path. With a `key` every request of a model needs it.
    """

    daemon_threads = True

    def __init__(self, models: dict[str, MaskedDiffusionLM]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.delay, self.key = models, 0.0, ""
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.hung_up = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Playground

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/v1/"):
            return self.answer({})
        name = self.path.strip("/").removeprefix("playground/") or "index.html"
        return self.reply(200, TYPES[name.rsplit(".", 1)[1]], PAGE.joinpath(name).read_bytes())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body))
        self.answer(body)

    def answer(self, body: dict[str, Any]) -> None:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.refuse(401, "This server needs an API key; send it in the header Authorization.")
        try:
            if self.path == "/v1/models":
                return self.send({"object": "list", "data": [describe(*one) for one in self.server.models.items()]})
            lm = self.server.models[body["model"]]
            if self.path == "/v1/score":
                return self.send({"object": "score", "data": [score(lm, body)]})
            if body.get("top"):
                return self.send({"object": "fill", "data": [{"index": 0, "alternatives": alternatives(lm, body)}]})
            generation = write(lm, self.path, body)
        except UnmaskError as error:
            return self.refuse(400, str(error))
        return self.stream(events(lm, generation))

    def stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                time.sleep(self.server.delay)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.hung_up.set()

    def refuse(self, status: int, message: str) -> None:
        self.send({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status)

    def send(self, content: dict[str, Any], status: int = 200) -> None:
        self.reply(status, "application/json", json.dumps(content).encode())

    def reply(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def describe(name: str, lm: MaskedDiffusionLM) -> dict[str, Any]:
    processor = lm.text_processor
    facts = {"causal": lm.causal, "length": lm.row_length, "mask_token_id": processor.mask_token_id}
    facts |= {"eos_token_id": processor.end_token_id, "samplers": ["ancestral", "remdm"]}
    orders = [] if lm.causal else ["confidence", "left_to_right"]
    return {"id": name, "object": "model", "unmask": {**facts, "orders": orders, "defaults": lm.generation_config}}


def rows_of(lm: MaskedDiffusionLM, body: dict[str, Any]) -> list[list[int]]:
    mask = lm.text_processor.mask_token_id
    return [[mask if token is None else token for token in row] for row in body["tokens"]]


def write(lm: MaskedDiffusionLM, path: str, body: dict[str, Any]) -> Generation:
    options = {name: body[name] for name in OPTIONS if name in body}
    if path == "/v1/completions":
        prompt = lm.text_processor.encode([body["prompt"]])[0] if body["prompt"] else []
        length = len(prompt) + body["max_tokens"]
        return lm.sample(1, prompt=body["prompt"], length=length, return_trajectory=True, **options)[0]
    config, sampler = lm.resolve(options, lm.fill_details, whole_texts=False)
    if path == "/v1/edit":
        from unmask.infilling import mask_spans

        ids = lm.text_processor.encode([body["text"]])[0]
        rows = [lm.text_processor.text_row(mask_spans(lm.text_processor, body["text"], ids, body["spans"]))]
    else:
        rows = lm.text_processor.check_rows(rows_of(lm, body)) if "tokens" in body else None
        rows = rows or lm._rows_with_blanks([body["text"]], config)
    return lm._generate(rows, sampler, config, return_trajectory=True)[0]


def events(lm: MaskedDiffusionLM, generation: Generation) -> Iterator[dict[str, Any]]:
    """The canvases of a finished text; only its last confidences are known, so every token has its last one."""
    assert generation.trajectory is not None
    mask, canvases = lm.text_processor.mask_token_id, generation.trajectory
    reader, calls = PieceReader(lm.tokenizer, mask), len(canvases) - 1

    def tokens(ids: list[int]) -> list[dict[str, Any]]:
        pieces = zip(ids, reader.read(ids), strict=True)
        return [{"id": None if one == mask else one, "text": piece or "", "given": one != mask} for one, piece in pieces]

    yield {"object": "canvas", "id": "1", "index": 0, "call": 0, "calls": calls, "tokens": tokens(canvases[0])}
    for call, (before, after) in enumerate(pairwise(map(tokens, canvases)), start=1):
        changes = [
            {"position": place, "id": new["id"], "text": new["text"], "confidence": generation.confidence[place]}
            for place, (old, new) in enumerate(zip(before, after, strict=True))
            if (old["id"], old["text"]) != (new["id"], new["text"])
        ]
        yield {"object": "canvas.delta", "id": "1", "index": 0, "call": call, "calls": calls, "changes": changes}
    yield {"object": "canvas.done", "id": "1", "index": 0, "call": calls, "calls": calls, "text": generation.text}


def alternatives(lm: MaskedDiffusionLM, body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    from unmask.infilling import most_likely_tokens

    denoiser = lm._continue_with_masks(lm.denoiser)
    (found,) = [most_likely_tokens(lm.text_processor, denoiser, row, body["top"]) for row in rows_of(lm, body)]
    return [[{"text": text, "id": token_id(lm, text), "probability": p} for text, p in blank] for blank in found]


def token_id(lm: MaskedDiffusionLM, text: str) -> int:
    (token,) = lm.text_processor.encode([text])[0][:1] or [lm.text_processor.eos_token_id]
    return token


def score(lm: MaskedDiffusionLM, body: dict[str, Any]) -> dict[str, Any]:
    bound = lm.score([body["text"]], precision=body["precision"])
    figures = {
        name: {"value": getattr(bound, name), "monte_carlo_error": bound.error(name), "data_error": None}
        for name in ("bits_per_char", "perplexity")
    }
    return {"index": 0, "nats": bound.nats, "tokens": bound.tokens, **figures, "exact": bound.exact}
