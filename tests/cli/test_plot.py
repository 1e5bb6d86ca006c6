"""`unmask plot`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

LOGS = Path(__file__).parents[1] / "logs"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two run folders in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("healthy", "healthy-ar"):
        Path(name).mkdir()
        shutil.copy(LOGS / f"{name}.jsonl", Path(name, "log.jsonl"))
    return Path("healthy"), Path("healthy-ar")


def test_curves_of_one_run_are_in_its_folder_and_of_several_here(printed, runs):
    out = printed("plot", "run", runs[0])
    assert out == f"Wrote {runs[0] / 'curves.png'}\n"
    assert (runs[0] / "curves.png").read_bytes().startswith(b"\x89PNG")
    printed("plot", "run", *runs)
    assert Path("curves.png").is_file()


def test_json_has_last_and_best_values(reported, runs):
    report = reported("plot", "run", *runs, "--x", "seconds", "--out", "compared.svg")
    assert report["picture"] == "compared.svg"
    assert Path("compared.svg").is_file()
    first, second = report["runs"]
    assert (first["name"], first["steps"], second["steps"]) == ("healthy", 400, 200)
    assert first["best"]["validation"] == {"step": 400, "bits_per_token": 4.514}
    assert second["last"]["bits_per_token"] == 3.686


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "empty"), "empty"),
        (("run", "healthy", "nowhere"), "nowhere"),
        (("run", "healthy", "--out", "curves.jpg"), ".png"),
        (("run", "healthy", "--out", "new/curves.png"), "'new'"),
        (("run", "healthy", "--x", "tokens"), "--x steps"),
        (("run", "healthy", "--x", "hours"), "--x"),
        (("order", "smoke", "--out", "order.txt"), ".png"),
        (("order", "smoke", "--out", "new/order.png"), "'new'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, runs, arguments, words):
    Path("empty").mkdir()
    Path("empty/log.jsonl").touch()
    before = sorted(Path().rglob("*"))
    assert words in refused("plot", *arguments)
    assert sorted(Path().rglob("*")) == before


def test_each_order_and_sampler_has_a_panel(reported, mdlm_folder, tmp_path):
    picture = tmp_path / "order.png"
    samplers = ("--order", "left_to_right", "--order", "threshold", "--sampler", "name: remdm, eta: 0.5")
    options = ("--length", 12, "--prompt", "ab", "--steps", 5, *samplers, "--out", picture)
    panels = reported("plot", "order", mdlm_folder, *options)["walks"]
    assert [panel["name"] for panel in panels] == ["left to right", "threshold", "remdm cap"]
    assert [one[:2] for one in panels[0]["written"]] == [[i, (i - 2) // 2 + 1] for i in range(2, 12)]
    assert panels[2]["calls"] == 5
    assert panels[0]["given"] == [0, 1]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_autoregressive_model_has_one_panel(reported, ar_folder, tmp_path):
    options = ("--length", 6, "--steps", 3, "--out", tmp_path / "a.png")
    (panel,) = reported("plot", "order", ar_folder, *options)["walks"]
    assert [one[:2] for one in panel["written"]] == [[i, i + 1] for i in range(6)]
