"""`unmask edit`: write a part of a text anew."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from unmask.cli.common import Json, Seed, Steps, Where, print_json, progress, room_for, split_texts
from unmask.cli.options import Constraining, HybridDrawing, Ordering, grouped, told
from unmask.errors import UnmaskError

Words = Annotated[
    list[str],
    typer.Argument(
        help="The text; '-' reads one a line from stdin. Of several words the first is the checkpoint: a folder, "
        "or a model that ships ('unmask list shipped'); without it 'stories'.",
        metavar="[CKPT] TEXT...",
    ),
]


@dataclass(frozen=True)
class Places:
    """What is written anew."""

    strength: Annotated[
        float | None, typer.Option(help="The share of the tokens to write anew, the least likely ones; 0.3 by default.")
    ] = None
    span: Annotated[
        list[str] | None,
        typer.Option(help="Characters to write anew: 4-9 is from 4 to before 9, from 0 on; may be repeated."),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Words to keep; all else is written anew; repeatable.", metavar="WORDS"),
    ] = None

    def chosen(self) -> dict[str, Any]:
        """What is asked for, as a model takes it; where nothing is, the least likely share."""
        from unmask.infilling import STRENGTH

        spans = [_span(one) for one in self.span or []] or None
        strength = STRENGTH if self.strength is None and not self.keep and not spans else self.strength
        return {"strength": strength, "keep": self.keep or None, "spans": spans}


@grouped
def edit(
    words: Words,
    *,
    places: Places,
    steps: Steps = None,
    seed: Seed = 0,
    drawing: HybridDrawing,
    constraining: Constraining,
    ordering: Ordering,
    where: Where,
    as_json: Json = False,
) -> None:
    """Write a part of a text anew, where the model finds it least likely or where you say.

    Examples:

        unmask edit "Once upon a time there was a colourless green idea." --strength 0.3

        unmask edit "The cat sat on the mat." --strength 0.5 --steps 2 --order confidence

        unmask edit runs/mine "The cat sat on the mat." --span 4-7

        unmask edit "One day Tim went to the park with his dog." --keep "Tim" --keep "his dog." --steps 8

        unmask edit "The cat sat on the mat." --strength 0.6 --with fish --min-p 0.1
    """
    from unmask.generation_config import check_seeds

    options, rule, wish = places.chosen(), drawing.rule(), constraining.wish()
    way = {"steps": steps, **ordering.way()}
    checkpoint, texts = split_texts(words, "edit")
    check_seeds(seed, len(texts))
    lm = where.load(checkpoint)
    how: dict[str, Any] = {**options, **way, **wish, "rule": rule}
    with room_for(1, constraining.particles), progress("editing", len(texts), quiet=as_json) as advance:
        done = [lm.edit_details(text, **how, seed=seed + i, progress=advance) for i, text in enumerate(texts)]
    if as_json:
        drawn = {"sampler": lm.sampler(**way).model_dump(), "rule": rule.model_dump()}
        print_json({**drawn, **told(wish), **options, "texts": [asdict(one) for one in done]})
        return
    for one in done:
        typer.echo(one.text)


def _span(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None:
        raise UnmaskError(f"--span {text} is no span of characters; write it as 4-9.")
    return int(found[1]), int(found[2])
