"""The same application as a Ray Serve deployment with replicas.

    UNMASK_MODELS="stories,mine=runs/mine" serve run unmask.serving.ray:app

UNMASK_API_KEY is the key, UNMASK_DEVICE the device of each replica, UNMASK_MIN_REPLICAS and UNMASK_MAX_REPLICAS bound
the number of replicas, which follows the number of open requests.
"""

from __future__ import annotations

import os
from typing import Any

from ray import serve

from unmask.serving import name_checkpoints

REQUESTS_PER_REPLICA = 64
"""Open requests per replica that the number of replicas aims at: as many rows as one network call has."""


def build_app() -> Any:
    """The application of one replica; only replicas import torch."""
    from unmask.pipeline import load
    from unmask.serving.app import create_app

    named = name_checkpoints(os.environ.get("UNMASK_MODELS", "stories").split(","))
    models = {name: load(path, device=os.environ.get("UNMASK_DEVICE")) for name, path in named.items()}
    return create_app(models, api_key=os.environ.get("UNMASK_API_KEY"))


@serve.deployment(
    autoscaling_config={
        "min_replicas": int(os.environ.get("UNMASK_MIN_REPLICAS", "1")),
        "max_replicas": int(os.environ.get("UNMASK_MAX_REPLICAS", "2")),
        "target_ongoing_requests": REQUESTS_PER_REPLICA,
    },
    max_ongoing_requests=4 * REQUESTS_PER_REPLICA,
)
@serve.ingress(build_app)
class Unmask:
    """A replica."""


app = Unmask.bind()  # type: ignore[attr-defined]
