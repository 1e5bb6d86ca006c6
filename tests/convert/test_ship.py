"""A run that is handed on: bf16 shards, the recipe, and a model card whose figures are those of the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import unmask.models  # noqa: F401  (the Auto classes know our networks)
from unmask.checkpoint import read_checkpoint_config
from unmask.config import parse_recipe, read_recipe
from unmask.convert.model_card import JUDGED as MEASURES
from unmask.convert.model_card import Entropy, Measurements, model_card, read_evidence, read_facts
from unmask.convert.ship import ship
from unmask.data.length_policies import SupervisedEOS
from unmask.data.sources import TextSource
from unmask.errors import UnmaskError
from unmask.likelihood import LEARNT_PADDING_NOTE, Bound, format_with_errors
from unmask.models.build import CheckpointSpec
from unmask.pipeline import load
from unmask.training import train
from unmask.training.callbacks import read_log

SMALL = ["model.hidden_size=32", "model.layers=2", "model.heads=2", "training.steps=4", "training.batch_size=8"]
SHORT = ["data.source.count=64", "training.log_every=2", "training.validate_every=4", "training.validation_rows=4"]
BOUND = Bound("mask-count", 700.0, 1000, 3000, 3000, 2.0, 9.0, 16)
KNOWN = {"value": 20.25, "low": 18.5, "high": 22.125}
ROW = {"name": "tiny", "kind": "samples", "steps": 64, "texts": 8, "empty": 0, **dict.fromkeys(MEASURES, KNOWN)}
JUDGED = {
    "judge": {"name": "/somewhere/judges/llama"},
    "n": 8,
    "seed": 5,
    "rule": {"temperature": 1.0, "top_p": 0.9},
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(read_recipe("smoke", [*SMALL, *SHORT]), folder)
    return folder


@pytest.fixture(scope="module")
def shipped(run_folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("models") / "tiny-chain"
    ship(run_folder, out)
    return out


def evaluated(bound: Bound, path: Path) -> Path:
    """A file as `unmask eval --json` writes it."""
    path.write_text(json.dumps({"headline": bound.as_dict()}))
    return path


def test_weights_are_the_average_rounded_to_bf16(run_folder, shipped):
    average, rounded = load_file(run_folder / "model.safetensors"), load_file(shipped / "model.safetensors")
    assert average.keys() == rounded.keys()
    for name, weight in average.items():
        assert rounded[name].dtype == torch.bfloat16
        assert torch.equal(rounded[name], weight.to(torch.bfloat16))


def test_it_opens_in_float32_and_says_the_same(run_folder, shipped):
    before, after = load(run_folder, device="cpu"), load(shipped, device="cpu")
    assert after.denoiser.dtype == torch.float32
    text = "abcdefgh" * 8
    assert after.score(text).nats == pytest.approx(before.score(text).nats, rel=1e-3)
    assert read_checkpoint_config(shipped) == read_checkpoint_config(run_folder)


def test_auto_classes_open_it(shipped):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    assert AutoModelForMaskedLM.from_pretrained(shipped).config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(shipped).mask_token == "[MASK]"


def test_shards_are_as_small_as_asked(shipped, tmp_path):
    """A network of about 2 MB in bf16, in files of at most one."""
    recipe = read_recipe("smoke", [*SHORT, "training.steps=1", "training.batch_size=1", "model.hidden_size=192"])
    train(recipe, tmp_path / "run")
    parcel = ship(tmp_path / "run", tmp_path / "out", shard_megabytes=1)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("model-*.safetensors")]
    assert parcel.shards == len(sizes) > 1
    assert max(sizes) < 1.01e6
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert parcel.parameters == sum(weight.numel() for weight in load(tmp_path / "out").denoiser.parameters())
    assert parcel.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_there_is_the_recipe_and_no_training_state(run_folder, shipped):
    assert (shipped / "recipe.yaml").read_bytes() == (run_folder / "recipe.yaml").read_bytes()
    assert parse_recipe(yaml.safe_load((shipped / "recipe.yaml").read_text())).training.steps == 4
    assert not (shipped / "state").exists()


def test_the_card_tells_the_run_s_own_figures(run_folder, shipped):
    card = (shipped / "README.md").read_text(encoding="utf-8")
    bound = Bound.from_dict(read_log(run_folder)[-1]["validation"])
    rows = int(json.loads((run_folder / "latest/state/trainer.json").read_text())["data"].split()[0])
    parameters = sum(weight.numel() for weight in load(shipped).denoiser.parameters())
    size = (shipped / "model.safetensors").stat().st_size
    entropy = read_recipe(run_folder / "recipe.yaml").data.source.bits_per_character()
    for words in (
        "# tiny-chain",
        'unmask.load("tiny-chain")',
        f"{parameters:,} parameters; {size:,} bytes in one file of bf16",
        "| steps | 4 of 8 rows |",
        "| tokens seen | 2,048 |",
        f"| passes over the rows | {32 / rows:.1f} |",
        f"| rows | {rows:,} for training, of 64 tokens, `padded` |",
        f"| validation at the end of the run | {bound.tokens:,} | {format_with_errors(bound, 'bits_per_char')} |",
        f"| the source itself |  | {entropy:.3f} |",
        f"It is {bound.bits_per_char - entropy:.3f} ± ",
    ):
        assert words in card, words
    assert "judged" not in card


def test_the_card_shows_what_was_measured_elsewhere(run_folder, tmp_path):
    judged = {**JUDGED, "rows": [ROW, {**ROW, "steps": None, **dict.fromkeys(MEASURES)}]}
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    (tmp_path / "entropy.json").write_text(json.dumps({"bits_per_char": 0.1, "stderr": 0.002, "how": "by its maker"}))
    (tmp_path / "data.md").write_text("Letters of a chain.\n")
    out = tmp_path / "out"
    ship(
        run_folder,
        out,
        bounds=[evaluated(BOUND, tmp_path / "held-out.json")],
        judged=tmp_path / "judged.json",
        entropy=tmp_path / "entropy.json",
        about=tmp_path / "data.md",
    )
    card = (out / "README.md").read_text(encoding="utf-8")
    for words in (
        "Letters of a chain.",
        "| held-out | 1,000 | ≤ 0.337 ± 0.001 ± 0.004 | ≤ 1.010 ± 0.003 ± 0.013 | ≤ 2.014 ± 0.004 ± 0.018 |",
        "| the source itself |  | 0.100 ± 0.002 |",
        "It is 0.237 ± 0.005 bits per character above",
        "The source's own bits: by its maker.",
        "| tiny, 64 steps | 20.2 (18.5–22.1) | 20.2 (18.5–22.1) |",
        "| tiny | - | - |",
        "Judge: llama; 8 texts from seed 5 on, top_p 0.9.",
    ):
        assert words in card, words


def test_bounds_of_one_file_name_are_told_apart(tmp_path):
    files = [tmp_path / folder / "held-out.json" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        evaluated(BOUND, file)
    assert list(read_evidence(files).bounds) == [str(file) for file in files]


def test_a_bar_in_a_recipe_does_not_break_the_card_and_unknown_bits_are_not_compared(run_folder, tmp_path):
    facts, _ = read_facts(run_folder)
    source = TextSource(paths=["a.txt"], separator="<|end|>")
    data = facts.recipe.data.model_copy(update={"source": source})
    text = facts.recipe.model_copy(update={"data": data})
    unknown = Bound("mask-count", 700.0, 1000, 0, 0, 2.0, 9.0, 16)
    card = model_card(
        "m", replace(facts, recipe=text, validation=unknown), Measurements(entropy=Entropy(0.1)), [10, 12]
    )
    assert r"<\|end\|>" in card
    assert "22 bytes in 2 files" in card
    assert "bits per character above" not in card
    assert "nan" not in card


def test_the_card_says_what_the_recipe_leaves_to_others(run_folder):
    """Files that are held out by name, EOS that fill rows, and weights that another run has left."""
    facts, _ = read_facts(run_folder)
    plain = model_card("m", facts, Measurements(), [10])
    assert "| held out | 5.0% of the documents" in plain
    assert LEARNT_PADDING_NOTE not in plain
    assert "beside this page with unmask" in plain
    source = TextSource(paths=["a.txt", "valid-b.txt"], validation_files="valid*")
    data = facts.recipe.data.model_copy(update={"source": source, "policy": SupervisedEOS()})
    recipe = facts.recipe.model_copy(update={"data": data, "model": CheckpointSpec(path="runs/first")})
    card = model_card("m", replace(facts, recipe=recipe), Measurements(), [10])
    assert "| held out | the files `valid*` |" in card
    assert LEARNT_PADDING_NOTE in card.split("## Likelihood")[1]
    assert "beside this page, which goes on from the weights of an earlier run, with unmask" in card


def test_it_can_be_packed_again_and_nothing_else_is_written_over(run_folder, tmp_path):
    out = tmp_path / "out"
    ship(run_folder, out)
    bound = evaluated(Bound("mask-count", 700.0, 1000, 3000, 3000, 2.0, 9.0, 16), tmp_path / "late.json")
    ship(run_folder, out, bounds=[bound])
    assert "| late |" in (out / "README.md").read_text()
    with pytest.raises(UnmaskError, match="folder of a run"):
        ship(run_folder, run_folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(UnmaskError, match="not empty"):
        ship(run_folder, tmp_path / "full")


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("bounds", "[]", "holds no bound"),
        ("bounds", "no json", "not JSON"),
        ("bounds", json.dumps({"headline": {**BOUND.as_dict(), "tokens": None}}), "holds no bound"),
        ("judged", "{}", "holds no judged texts"),
        ("judged", json.dumps({**JUDGED, "rows": [{"name": "tiny", "steps": 4}]}), "holds no judged texts"),
        ("judged", json.dumps({**JUDGED, "rows": [{**ROW, "entropy": "high"}]}), "holds no judged texts"),
        ("entropy", '{"bits": 1}', "does not tell a source's entropy"),
        ("entropy", '{"bits_per_char": "low"}', "does not tell a source's entropy"),
        ("about", "\udcff", "not UTF-8 text"),
        ("about", None, "no file"),
    ],
)
def test_a_wrong_file_is_named_and_nothing_is_written(run_folder, tmp_path, option, content, words):
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UnmaskError, match=words):
        ship(run_folder, tmp_path / "out", **{option: [file] if option == "bounds" else file})
    assert not (tmp_path / "out").exists()
