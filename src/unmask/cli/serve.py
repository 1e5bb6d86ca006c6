"""`unmask serve`: an HTTP API for checkpoints."""

from __future__ import annotations

import ipaddress
from importlib.util import find_spec
from typing import Annotated

import typer

from unmask.cli import common
from unmask.errors import UnmaskError
from unmask.serving import name_checkpoints

PACKAGES = ("fastapi", "uvicorn", "prometheus_client", "greenlet")

Checkpoints = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders or names of shipped models; NAME=FOLDER serves a folder under another name. Default: stories.",
        metavar="[CKPT]...",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every address of this machine.")]
ApiKey = Annotated[
    str | None,
    typer.Option(help="Key that clients must send as a bearer token.", envvar="UNMASK_API_KEY", show_envvar=True),
]


@common.option_groups
def serve(
    checkpoints: Checkpoints = None,
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8000,
    api_key: ApiKey = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let anyone who can reach the host use it.")] = False,
    max_requests: Annotated[int, typer.Option(min=1, help="Requests answered or waiting at the same time.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one text.")] = 4096,
    max_steps: Annotated[int, typer.Option(min=1, help="Network calls of one text.")] = 4096,
    max_texts: Annotated[int, typer.Option("--max-n", min=1, help="Texts of one request.")] = 64,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Time for one request.")] = 300.0,
    model: common.ModelOptions,
) -> None:
    """Serve checkpoints over HTTP, in the formats of OpenAI, Mistral and llama.cpp.

    The page at / shows canvases while they are unmasked, /docs the endpoints. Ctrl-C finishes the open requests; a
    second one does not wait for them.

    Examples:

        unmask serve

        unmask serve stories stories-ar --port 8080

        unmask serve mine=runs/mine --device cuda

        UNMASK_API_KEY=secret unmask serve runs/mine --host 0.0.0.0

        curl localhost:8000/v1/completions -H "Content-Type: application/json" -d '{"prompt": "Once upon a time"}'
    """
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        raise UnmaskError(f"'unmask serve' needs the package {missing[0]}; run: pip install 'unmask[serve]'.")
    loopback = is_loopback(host)
    if api_key is not None and (not api_key or not api_key.isascii() or not api_key.isprintable()):
        raise UnmaskError("--api-key must be printable ASCII without line ends, and not empty.")
    if not loopback and api_key is None and not no_auth:
        raise UnmaskError(f"Anyone who can reach {host} could use this server; give --api-key or --no-auth.")
    named = name_checkpoints(checkpoints or ["stories"])
    from unmask.serving.server import bind, run

    listener = bind(host, port)
    from unmask.serving.api import Limits
    from unmask.serving.app import create_app

    limits = Limits(requests=max_requests, tokens=max_tokens, steps=max_steps, texts=max_texts, seconds=max_seconds)
    models = {name: model.load(checkpoint) for name, checkpoint in named.items()}
    hosts = sorted({"localhost", "127.0.0.1", "::1", host}) if loopback and api_key is None else None
    app = create_app(models, api_key=api_key, limits=limits, hosts=hosts)
    address, number = listener.getsockname()[:2]
    key = "with a key" if api_key else "without a key"
    who = "this machine only" if loopback else "anyone who can reach it"
    shown = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"
    message = f"Serving {', '.join(models)} on {shown} ({key}, for {who}). Press Ctrl-C to stop."
    common.error_console.print(message, soft_wrap=True)
    run(app, listener)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
