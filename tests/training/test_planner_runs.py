"""`unmask train planner` from end to end: the denoiser stays unchanged and samplers can use the planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

import unmask
from tests.conftest import make_checkpoint
from tests.runs import StopAt, assert_same_tensors, write_cats
from tests.training.test_fine_tuning import weights
from unmask.checkpoint import CheckpointConfig, load_checkpoint, save_checkpoint
from unmask.config import Recipe
from unmask.convert import export
from unmask.errors import UnmaskError
from unmask.models import CausalLM, DiT
from unmask.training import Interrupted, train
from unmask.training.callbacks import read_log
from unmask.training.run import recipe_from

SHORT = ["training.steps=6", "training.batch_size=4", "training.validation_rows=8", "training.save_every=2"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "my.txt", 400)


def recipe(text: Path, folder: Path, *overrides: str) -> Recipe:
    return recipe_from("planner", str(folder), [f"data.source={{name: text, paths: ['{text}']}}", *SHORT, *overrides])


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke model with a bias for one letter: its 'c' is confident and usually wrong."""
    smoke = load_checkpoint("smoke")
    with torch.no_grad():
        smoke.model.output_layer.linear.bias[smoke.tokenizer.convert_tokens_to_ids("c")] += 4.0
    folder = tmp_path_factory.mktemp("models") / "biased"
    save_checkpoint(folder, smoke.model, smoke.tokenizer, smoke.config)
    return folder


@pytest.fixture(scope="module")
def planned(biased: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained a planner for the biased model, on the data of the smoke model."""
    out = tmp_path_factory.mktemp("runs") / "planned"
    longer = ["training.steps=120", "training.batch_size=16", "training.validation_rows=64", "training.log_every=10"]
    train(recipe_from("planner", str(biased), [*longer, "data.source.count=1000"]), out)
    return out


def test_the_denoiser_is_unchanged_bit_for_bit(planned: Path, biased: Path) -> None:
    before, after = weights(biased), weights(planned)
    assert set(after) - set(before) == {name for name in after if name.startswith("planner.")}
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    state = load_file(planned / "latest" / "state" / "model.safetensors")
    assert all(name.startswith("planner.") for name in state)
    assert float(after["planner.outer.weight"].abs().max()) > 0.01


def test_the_checkpoint_is_evaluated_as_the_denoiser(planned: Path, biased: Path) -> None:
    then, now = unmask.load(biased, device="cpu"), unmask.load(planned, device="cpu")
    assert (now.config.objective, now.config.schedule) == (then.config.objective, then.config.schedule)
    assert (now.config.policy, now.config.length) == (then.config.policy, then.config.length)
    assert now.denoiser.config.dropout == then.denoiser.config.dropout
    assert now.score("abcdefgh", precision=None) == then.score("abcdefgh", precision=None)
    assert now.generate(2, steps=4, length=12) == then.generate(2, steps=4, length=12)


def test_the_auto_classes_keep_the_planner_and_export_leaves_it_out(
    planned: Path, biased: Path, tmp_path: Path
) -> None:
    opened = AutoModelForMaskedLM.from_pretrained(planned)
    opened.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in weights(planned).items())
    exported = []
    for folder in (planned, biased):
        export(folder, tmp_path / f"{folder.name}.safetensors")
        exported.append(load_file(tmp_path / f"{folder.name}.safetensors"))
    left, right = exported
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_planner_beats_confidence(planned: Path) -> None:
    records = read_log(planned)
    losses = [record["bits_per_token"] for record in records if "loss" in record]
    assert losses[-1] < 0.75 * losses[0]
    seen = records[-1]["foresight"]
    assert seen["gain"] > 4 * seen["gain_stderr"] > 0
    assert seen["planner"] - seen["confidence"] == pytest.approx(seen["gain"])
    validation = records[-1]["validation"]
    assert validation["estimator"] == "planner"
    assert 0 < validation["bits_per_token_mc_stderr"] < 0.05
    assert [record["advice"] for record in records if "advice" in record] == []


def test_stop_and_resume_equals_an_unbroken_run(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe(text, mdlm_folder), whole)
    with pytest.raises(Interrupted) as stopped:
        train(recipe(text, mdlm_folder), broken, callbacks=[StopAt(3)])
    assert str(broken / "recipe.yaml") in stopped.value.resume_command
    train(recipe_from(str(broken / "recipe.yaml"), None), broken, resume=True)
    assert_same_tensors(whole, broken)


def test_settings_that_the_planner_recipe_leaves_out_are_the_checkpoints(text: Path, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "base", policy="supervised_eos")
    opened = load_checkpoint(folder)
    source = {"name": "text", "paths": [str(text)], "separator": "line"}
    told = CheckpointConfig(
        schedule="cosine",
        objective={"name": "subs", "weight": "flat"},
        policy="supervised_eos",
        length=40,
        protocol={"data": {"source": source, "validation": 0.2}},
    )
    save_checkpoint(tmp_path / "told", opened.model, opened.tokenizer, told)
    own = recipe_from("planner", str(tmp_path / "told"))
    assert own.data.source.separator == "line"
    assert (own.data.validation, own.data.length, own.data.policy.name) == (0.2, 40, "supervised_eos")
    assert own.schedule.name == "cosine"
    assert (own.objective.name, own.objective.of.name, own.objective.of.weight) == ("planner", "subs", "flat")
    assert own.model.planner.width == 128
    other = recipe_from("planner", None, [f"model.path={tmp_path / 'told'}", "data.source.separator=paragraph"])
    assert other.data.source.separator == "paragraph"
    assert other.model.path == str(tmp_path / "told")
    assert recipe_from("planner", str(tmp_path / "told"), ["model.planner.width=7"]).model.planner.width == 7
    with pytest.raises(UnmaskError, match=r"base' does not say what it was trained on; name the text"):
        recipe_from("planner", str(folder))


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        ("ar", [], "reads left to right, and the objective 'planner' needs both ways"),
        ("mdlm", ["objective=subs"], "model.planner is not trained by the objective 'subs'; set objective=planner"),
        ("mdlm", ["model.planner=null"], "'planner' trains the planner of a checkpoint, .* has none; start"),
        ("mdlm", ["model.lora.rank=2"], "model.lora trains the network and model.planner freezes it; set only one"),
        ("mdlm", ["model.planner.width=0"], "width"),
    ],
)
def test_recipes_without_a_trainable_planner_are_refused(
    text: Path, tmp_path: Path, request: pytest.FixtureRequest, model: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text, request.getfixturevalue(f"{model}_folder"), *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fine_tuning_drops_the_planner(planned: Path, tmp_path: Path) -> None:
    letters = tmp_path / "letters.txt"
    letters.write_text("\n".join(["abcdefgh" * 5] * 40))
    lines = "data.source.separator=line"
    train(recipe_from(str(letters), str(planned), [*SHORT, lines]), tmp_path / "tuned")
    assert load_checkpoint(tmp_path / "tuned").model.planner is None
    train(recipe(letters, planned, lines, "model.planner.width=3"), tmp_path / "replanned")
    assert load_checkpoint(tmp_path / "replanned").model.planner.inner.out_features == 3


def test_the_command_line_trains_and_uses_a_planner(run, shipped_models, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("train", "planner", text, *SHORT, "--out", out)
    code, said, err = run(*command, "--verbose")
    assert code == 0, err
    assert "bits per masked token; of " in said
    assert f"unmask sample {out} --steps 64 --order planner" in said
    result = json.loads(run(*command, "--resume", "--json")[1])
    assert 0 <= result["foresight"]["planner"] <= 1
    assert result["bound"]["bits_per_token"] > 0
    code, said, err = run("sample", out, "--order", "planner", "--steps", 4, "--length", 12, "--json")
    assert code == 0, err
    assert json.loads(said)["sampler"]["order"] == "planner"
    assert json.loads(said)["texts"][0]["calls"] == 4
    walks = ("--sampler", "name: threshold, by: planner, above: 0.5", "--order", "planner")
    code, said, err = run("plot", "order", out, "--length", 8, *walks, "--out", tmp_path / "order.png", "--json")
    assert code == 0, err
    assert [walk["name"] for walk in json.loads(said)["walks"]] == ["planner", "threshold"]


@pytest.mark.parametrize(
    "verb",
    [
        ("sample", "--length", "12"),
        ("sample", "--length", "12", "--sampler", "name: threshold, by: planner"),
        ("fill", "a[MASK:2-4]b"),
        ("edit", "a few words", "--strength", "0.5"),
        ("plot", "order", "--length", "12"),
        ("eval", "generation", "--judge", "AR", "--data", "TEXT"),
    ],
)
def test_a_missing_planner_is_reported_before_any_network_call(
    run,
    mdlm_folder: Path,
    ar_folder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
) -> None:
    def asked(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(DiT, "hidden", asked)
    monkeypatch.setattr(CausalLM, "hidden", asked)
    monkeypatch.chdir(tmp_path)
    words = [{"AR": str(ar_folder), "TEXT": str(text)}.get(word, word) for word in verb]
    place = 2 if words[0] in ("plot", "eval") else 1
    order = () if "--sampler" in words else ("--order", "planner")
    code, out, err = run(*words[:place], mdlm_folder, *words[place:], *order)
    said = " ".join(err.split())
    assert (code, out) == (2, "")
    assert "has no planner to order positions by; train one with 'unmask train planner --from" in said
    assert list(tmp_path.iterdir()) == []
