"""The HTTP endpoints."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles

from unmask import __version__
from unmask.errors import UnmaskError
from unmask.likelihood import Bound
from unmask.serving import canvases, completions
from unmask.serving.api import (
    ChooseRequest,
    CompletionRequest,
    EditRequest,
    ErrorBody,
    FillRequest,
    FimRequest,
    InfillRequest,
    Limits,
    ScoreRequest,
    server_event,
)
from unmask.serving.batches import Events, Job
from unmask.serving.guard import Guard, add_error_handlers, error_body, explain
from unmask.serving.service import Service

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

STREAMS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
"""What FastAPI documents for endpoints that may stream."""
PLAYGROUND = Path(__file__).parent / "playground"


def create_app(
    models: dict[str, MaskedDiffusionLM],
    *,
    api_key: str | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """The ASGI application that serves models by their names. Without an `api_key` every client may use it.

    Requests must name one of the `hosts`, if given, so that no web page can reach a local server under another name.
    """
    service = Service(models, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    errors: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorBody, "description": "A refusal; the message says what to change."},
        "5XX": {"model": ErrorBody, "description": "The server ran out of time or memory."},
    }
    app = FastAPI(
        title="unmask", version=__version__, lifespan=lifespan, docs_url="/docs", redoc_url=None, responses=errors
    )
    app.state.service = service
    add_error_handlers(app, service.hide_paths)
    _add_library_endpoints(app, service)
    _add_completion_endpoints(app, service)
    app.mount("/playground", StaticFiles(directory=PLAYGROUND))
    app.get("/", include_in_schema=False)(lambda: FileResponse(PLAYGROUND / "index.html"))
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, api_key=api_key, hosts=hosts)
    return app


# ---- endpoints ------------------------------------------------------------------------------------------------------


def _add_completion_endpoints(app: FastAPI, service: Service) -> None:
    async def complete(request: CompletionRequest, http: Request, shape: completions.Shape) -> Response:
        name, lm = service.find(request.model)
        ticket = service.ticket()
        planning = partial(completions.plan_completions, lm, request, ticket, service.limits)
        planned = await service.in_thread(http, ticket, planning, planning=True)
        jobs = [completion.job for completion in planned]
        if request.diffusing:
            return _stream(service, jobs, partial(canvases.stream_canvases, jobs=jobs, n=request.n))
        if request.stream:
            write = partial(completions.stream_text, name=name, planned=planned, request=request, shape=shape)
            return _stream(service, jobs, write)
        texts = await service.finish(http, jobs)
        return JSONResponse(shape(completions.completion_answer(name, planned, texts)))

    @app.post("/v1/completions", responses=STREAMS)
    async def continue_texts(request: CompletionRequest, http: Request) -> Response:
        """Texts that continue a prompt, or that stand between a prompt and a suffix."""
        return await complete(request, http, dict)

    @app.post("/v1/fim/completions", responses=STREAMS)
    async def fim(request: FimRequest, http: Request) -> Response:
        """Mistral's fill-in-the-middle: completions with `message` or `delta` in the choices."""
        return await complete(request, http, completions.as_fim)

    @app.post("/infill", responses=STREAMS)
    async def infill(request: InfillRequest, http: Request) -> Response:
        """llama.cpp's infill: the text between `input_prefix` and `input_suffix`."""
        return await complete(request.completion(), http, completions.as_infill)


def _add_library_endpoints(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models of this server."""
        return {"object": "list", "data": [service.describe(name) for name in service.models]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        return service.describe(service.find(name)[0])

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4")

    @app.post("/v1/fill", responses=STREAMS)
    async def fill(request: FillRequest, http: Request) -> Response:
        """Fill the blanks of texts, or the masks of rows of tokens."""
        lm, ticket = service.find(request.model)[1], service.ticket()
        planning = partial(canvases.plan_fill, lm, request, ticket, service.limits)
        job = await service.in_thread(http, ticket, planning, planning=True)
        if request.diffusing:
            return _stream(service, [job], partial(canvases.stream_canvases, jobs=[job]))
        found: list[Any] = []
        if request.top is not None:
            ranking = partial(canvases.alternatives, job, request.top)
            found = await service.in_thread(http, ticket, ranking)
        (texts,) = await service.finish(http, [job])
        report = canvases.canvas_report(job, texts, "fill")
        for one, masks in zip(report["data"], found, strict=False):
            one["alternatives"] = masks
        return JSONResponse(report)

    @app.post("/v1/edit", responses=STREAMS)
    async def edit(request: EditRequest, http: Request) -> Response:
        """Rewrite spans, the least likely tokens, or all but some words of a text."""
        lm, ticket = service.find(request.model)[1], service.ticket()
        planning = partial(canvases.plan_edit, lm, request, ticket, service.limits)
        job = await service.in_thread(http, ticket, planning, planning=True)
        if request.diffusing:
            return _stream(service, [job], partial(canvases.stream_canvases, jobs=[job]))
        (texts,) = await service.finish(http, [job])
        return JSONResponse(canvases.canvas_report(job, texts, "edit"))

    @app.post("/v1/score")
    async def score(request: ScoreRequest, http: Request) -> Response:
        """The bound on -log p of texts, with its errors."""
        lm, ticket, limits = service.find(request.model)[1], service.ticket(), service.limits
        texts = [request.text] if isinstance(request.text, str) else request.text
        limits.check_texts(len(texts))

        def work() -> Bound:
            tokens = sum(map(len, lm.text_processor.encode([*texts, request.given or ""])))
            if tokens > limits.tokens:
                raise UnmaskError(f"The texts have at most {limits.tokens} tokens on this server, got {tokens}.")
            return lm.score(texts, request.given, precision=request.precision, seed=request.seed)

        bound = await service.in_thread(http, ticket, work)
        data = [{"index": index, **_bound(one)} for index, one in enumerate(bound)]
        return JSONResponse({"object": "score", "data": data, "total": _bound(bound)})

    @app.post("/v1/choose")
    async def choose(request: ChooseRequest, http: Request) -> Response:
        """The probabilities of given answers at the [MASK] of a text."""
        lm, ticket = service.find(request.model)[1], service.ticket()
        choosing = partial(lm.choose, request.text, request.choices, seed=request.seed)
        found = await service.in_thread(http, ticket, choosing)
        data = [{"choice": one.text, "probability": one.probability, "error": one.error} for one in found]
        return JSONResponse({"object": "choose", "data": data, "exact": all(one.exact for one in found)})


def _bound(bound: Bound) -> dict[str, Any]:
    """A bound with its errors as JSON."""

    def unit(name: str) -> dict[str, float | None]:
        value = getattr(bound, name)
        values = {"value": value, "monte_carlo_error": bound.error(name), "data_error": bound.error(name, "data")}
        return {key: None if one is None or not math.isfinite(one) else one for key, one in values.items()}

    units = {name: unit(name) for name in ("bits_per_char", "bits_per_token", "perplexity")}
    return {"nats": bound.nats, "nats_error": bound.mc_stderr, "tokens": bound.tokens, **units, "exact": bound.exact}


def _stream(service: Service, jobs: list[Job], write: Callable[[Events], AsyncIterator[bytes]]) -> StreamingResponse:
    """Server-sent events of jobs. A later error is an event too, since the status is already sent."""

    async def send() -> AsyncIterator[bytes]:
        async with aclosing(service.events(jobs)) as events:
            try:
                async for part in write(events):
                    yield part
            except Exception as error:
                status, message, code = explain(error, service.hide_paths)
                yield server_event(error_body(status, message, code))

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(send(), media_type="text/event-stream", headers=headers)
