"""A shipped run has bf16 shards, its recipe, and a model card with the figures of the run and of the given files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import unmask.models  # noqa: F401  (registers our networks with the Auto classes)
from unmask.checkpoint import read_checkpoint_config
from unmask.config import read_recipe
from unmask.convert.ship import METRICS, Measurements, SourceEntropy, model_card, read_measurements, read_run, ship
from unmask.data.length_policies import SupervisedEOS
from unmask.data.sources.text import TextSource
from unmask.errors import UnmaskError
from unmask.io import write_checksums
from unmask.likelihood import LEARNED_PADDING_NOTE, Bound, format_with_errors
from unmask.models.build import CheckpointSpec
from unmask.pipeline import load
from unmask.training import train
from unmask.training.callbacks import read_log

SMALL = ["model.hidden_size=32", "model.layers=2", "model.heads=2", "training.steps=4", "training.batch_size=8"]
SHORT = ["data.source.count=64", "training.log_every=2", "training.validate_every=4", "training.validation_rows=4"]
BOUND = Bound("mask-count", 700.0, 1000, 3000, 3000, 2.0, 9.0, 16, denominator="text tokens")
ESTIMATE = {"value": 20.25, "low": 18.5, "high": 22.125}
ROW = {"name": "tiny", "kind": "samples", "steps": 64, "texts": 8, "empty": 0, **dict.fromkeys(METRICS, ESTIMATE)}
JUDGED = {"judge": {"name": "/somewhere/judges/llama"}, "n": 8, "seed": 5, "rule": {"temperature": 1.0, "top_p": 0.9}}


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
    """A file as written by `unmask eval --json`."""
    path.write_text(json.dumps({"headline": bound.as_dict()}))
    return path


def test_weights_are_the_ema_rounded_to_bf16(run_folder, shipped):
    average, rounded = load_file(run_folder / "model.safetensors"), load_file(shipped / "model.safetensors")
    assert average.keys() == rounded.keys()
    for name, weight in average.items():
        assert rounded[name].dtype == torch.bfloat16
        assert torch.equal(rounded[name], weight.to(torch.bfloat16))


def test_a_shipped_model_has_its_recipe_and_loads_with_the_same_likelihood(run_folder, shipped):
    assert (shipped / "recipe.yaml").read_bytes() == (run_folder / "recipe.yaml").read_bytes()
    assert not (shipped / "state").exists()
    before, after = load(run_folder, device="cpu"), load(shipped, device="cpu")
    assert after.denoiser.dtype == torch.float32
    text = "abcdefgh" * 8
    assert after.score(text).nats == pytest.approx(before.score(text).nats, rel=1e-3)
    assert read_checkpoint_config(shipped) == read_checkpoint_config(run_folder)
    assert AutoModelForMaskedLM.from_pretrained(shipped).config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(shipped).mask_token == "[MASK]"


def test_damage_is_refused_and_nothing_is_written(run_folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(run_folder, run, symlinks=True)
    weights = (run / "model.safetensors").resolve()
    content = bytearray(weights.read_bytes())
    content[-5] ^= 16
    weights.write_bytes(content)
    with pytest.raises(UnmaskError, match=r"model\.safetensors.*damaged|damaged.*model\.safetensors") as caught:
        ship(run, tmp_path / "out")
    assert "\n" not in str(caught.value)
    tensors = {name: tensor.clone() for name, tensor in load_file(run_folder / "model.safetensors").items()}
    tensors[next(iter(tensors))].view(-1)[0] = float("nan")
    save_file(tensors, weights, {"format": "pt"})
    write_checksums(weights.parent)
    with pytest.raises(UnmaskError, match="not finite"):
        ship(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_have_at_most_the_given_size(tmp_path):
    recipe = read_recipe("smoke", [*SHORT, "training.steps=1", "training.batch_size=1", "model.hidden_size=192"])
    train(recipe, tmp_path / "run")
    report = ship(tmp_path / "run", tmp_path / "out", shard_megabytes=1)
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("model-*.safetensors")]
    assert report.shards == len(sizes) > 1
    assert max(sizes) < 1.01e6
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    assert report.parameters == sum(weight.numel() for weight in load(tmp_path / "out").denoiser.parameters())
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


# ---- the model card --------------------------------------------------------------------------------------------------


def test_the_card_has_the_figures_of_the_run(run_folder, shipped):
    card = (shipped / "README.md").read_text(encoding="utf-8")
    bound = Bound.from_dict(read_log(run_folder)[-1]["validation"])
    rows = int(json.loads((run_folder / "latest/state/trainer.json").read_text())["data"].split()[0])
    parameters = sum(weight.numel() for weight in load(shipped).denoiser.parameters())
    size = (shipped / "model.safetensors").stat().st_size
    entropy = read_recipe(run_folder / "recipe.yaml").data.source.bits_per_character()
    assert yaml.safe_load(card.split("---\n")[1]) == {
        "library_name": "unmask",
        "tags": ["masked-diffusion", "language-model"],
    }
    for words in (
        "# tiny-chain",
        'unmask.load("tiny-chain")',
        f"{parameters:,} parameters; {size:,} bytes in one file of bf16",
        "| steps | 4 with batch size 8 |",
        "| tokens | 2,048 |",
        f"| epochs | {32 / rows:.1f} |",
        f"| rows | {rows:,} for training, 64 tokens each, `padded` |",
        f"| validation at the end of training | {bound.tokens:,} | {format_with_errors(bound, 'bits_per_char')} |",
        f"| entropy of the source |  | {entropy:.3f} |",
        f"It is {bound.bits_per_char - entropy:.3f} ± ",
    ):
        assert words in card, words
    assert "Generated texts" not in card


def test_the_card_has_the_figures_of_the_given_files(run_folder, tmp_path):
    judged = {**JUDGED, "rows": [ROW, {**ROW, "steps": None, **dict.fromkeys(METRICS)}]}
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    (tmp_path / "entropy.json").write_text(json.dumps({"bits_per_char": 0.1, "stderr": 0.002, "how": "by its maker"}))
    (tmp_path / "data.md").write_text("Letters of a chain.\n")
    earlier = tmp_path / "earlier.json"
    names = ("estimator", "nats", "tokens", "bytes", "characters", "mc_stderr", "data_stderr", "draws", "exact")
    earlier.write_text(json.dumps({"headline": {name: getattr(BOUND, name) for name in names}}))
    ship(
        run_folder,
        tmp_path / "out",
        bounds=[evaluated(BOUND, tmp_path / "held-out.json"), earlier],
        judged=tmp_path / "judged.json",
        entropy=tmp_path / "entropy.json",
        about=tmp_path / "data.md",
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for words in (
        "Letters of a chain.",
        "| held-out | 1,000 | ≤ 0.337 ± 0.001 ± 0.004 | ≤ 1.010 ± 0.003 ± 0.013 | ≤ 2.014 ± 0.004 ± 0.018 |",
        "| earlier | 1,000 positions | ≤ 0.337 ± 0.001 ± 0.004 | ≤ 1.010 ± 0.003 ± 0.013 |",
        "| entropy of the source |  | 0.100 ± 0.002 |",
        "It is 0.237 ± 0.005 bits per character above",
        "Entropy of the source: by its maker.",
        "| tiny, 64 steps | 20.2 (18.5–22.1) | 20.2 (18.5–22.1) |",
        "| tiny | - | - |",
        "Judge: llama; 8 texts with seeds from 5, top_p 0.9.",
    ):
        assert words in card, words


def test_bounds_with_the_same_file_name_are_named_by_their_paths(tmp_path):
    files = [tmp_path / folder / "held-out.json" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        evaluated(BOUND, file)
    assert list(read_measurements(files).bounds) == [str(file) for file in files]


def test_the_card_describes_data_padding_starting_weights_and_unknown_bits(run_folder):
    run = read_run(run_folder)
    plain = model_card("m", run, Measurements(), [10])
    assert "| held out | 5.0% of the documents" in plain
    assert LEARNED_PADDING_NOTE not in plain
    assert "by the recipe in `recipe.yaml`." in plain
    source = TextSource(paths=["a.txt", "valid-b.txt"], separator="<|end|>", validation_files="valid*")
    data = run.recipe.data.model_copy(update={"source": source, "policy": SupervisedEOS()})
    recipe = run.recipe.model_copy(update={"data": data, "model": CheckpointSpec(path="runs/first")})
    unknown = Bound("mask-count", 700.0, 1000, 0, 0, 2.0, 9.0, 16)
    measured = Measurements(entropy=SourceEntropy(bits_per_char=0.1))
    card = model_card("m", replace(run, recipe=recipe, validation=unknown), measured, [10, 12])
    assert r"<\|end\|>" in card, "a bar is escaped in a table"
    assert "22 bytes in 2 files" in card
    assert "bits per character above" not in card
    assert "nan" not in card
    assert "| held out | the files `valid*` |" in card
    assert LEARNED_PADDING_NOTE in card.split("## Likelihood")[1]
    assert "`recipe.yaml`, starting from the weights of an earlier run." in card


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_a_shipped_folder_is_replaced_and_no_other(run_folder, tmp_path):
    out = tmp_path / "out"
    ship(run_folder, out)
    ship(run_folder, out, bounds=[evaluated(BOUND, tmp_path / "late.json")])
    assert "| late |" in (out / "README.md").read_text()
    with pytest.raises(UnmaskError, match="folder of a run"):
        ship(run_folder, run_folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(UnmaskError, match="not empty"):
        ship(run_folder, tmp_path / "full")
    with pytest.raises(UnmaskError, match="not a run with a checkpoint"):
        ship(tmp_path / "full", tmp_path / "new")


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("bounds", "[]", "a bound"),
        ("bounds", "no json", "a bound"),
        ("bounds", json.dumps({"headline": {**BOUND.as_dict(), "tokens": None}}), "a bound"),
        ("judged", "{}", "judged texts"),
        ("judged", json.dumps({**JUDGED, "rows": [{"name": "tiny", "steps": 4}]}), "judged texts"),
        ("judged", json.dumps({**JUDGED, "rows": [{**ROW, "entropy": "high"}]}), "judged texts"),
        ("entropy", '{"bits": 1}', "the entropy of a source"),
        ("entropy", '{"bits_per_char": "low"}', "the entropy of a source"),
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
