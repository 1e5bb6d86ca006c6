"""The plain implementation computes what ours computes, and reports of benchmarks are consistent."""

from __future__ import annotations

import json
import math
import runpy
import signal
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from benchmarks import measure, sample, train
from benchmarks.likelihood import compare_likelihood
from benchmarks.measure import Machine, Ratio, Report, Result, Spread
from benchmarks.plain import PlainTrainer, plain_bound, plain_sample
from benchmarks.sample import AutoregressiveSampling, DiffusionSampling, PlainSampling
from benchmarks.setup import Setup, Workload, is_named, make_setup, read_bench_recipe
from unmask.errors import UnmaskError
from unmask.models import CausalSpec, DiTSpec
from unmask.objectives.base import Noise
from unmask.objectives.subs import Subs
from unmask.optimizers.muon import Muon
from unmask.process import Batch
from unmask.schedules import LogLinear
from unmask.training.metrics import flops_per_token

CPU = torch.device("cpu")
SPEC = DiTSpec(size="nano", hidden_size=16, layers=2, heads=2, dropout=0.0)
TINY = Setup(spec=SPEC, vocab_size=11, mask_token_id=10, length=8, batch=4)
MASK = 10
MACHINE = Machine("here", 1, 1e9)


def same_weights():
    """Our network and the plain one with the same non-zero weights."""
    torch.manual_seed(0)
    ours, plain = TINY.network().eval(), TINY.plain_network().eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


# ---- the plain implementation ----------------------------------------------------------------------------------------


def test_plain_loss_and_gradients_equal_ours():
    ours, plain = same_weights()
    ids = torch.from_numpy(TINY.ids(4))
    t, u = torch.tensor([0.05, 0.4, 0.7, 1.0]), torch.rand(4, 8)
    terms = Subs().loss(ours, Batch.of(ids), LogLinear(), Noise(t, u))
    loss = plain.loss(ids, t, u)
    assert loss.item() == pytest.approx(terms.per_token.item(), rel=1e-5)
    loss.backward()
    (terms.loss / terms.count).backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(parameter.grad, ours.get_parameter(name).grad, rtol=1e-4, atol=1e-6)


def test_plain_trainer_updates_weights_and_their_average():
    torch.manual_seed(0)
    trainer = PlainTrainer(TINY.plain_network(), torch.float32, ema=0.75)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    trainer.step(torch.from_numpy(TINY.ids(4)))
    for old, new, average in zip(before, trainer.parameters, trainer.average, strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(average, 0.75 * old + 0.25 * new.detach())


def test_plain_sampling_step_has_the_posterior_distribution():
    _, plain = same_weights()
    torch.manual_seed(1)
    batch, length, steps = 20_000, 2, 4
    first = plain(torch.full((1, length), MASK)).softmax(-1)[0]
    states = plain_sample(plain, batch, length, steps, torch.float32)
    next(states)
    canvas, _ = next(states)
    for position in range(length):
        seen = torch.bincount(canvas[:, position], minlength=11) / batch
        expected = first[position] / steps
        expected[MASK] = 1 - 1 / steps
        error = (expected * (1 - expected) / batch).sqrt()
        assert ((seen - expected).abs() < 4.5 * error + 1e-9).all()
    *_, (done, calls) = states
    assert (done != MASK).all()
    assert calls == steps
    states = list(plain_sample(plain, 1, 3, 60, torch.float32))
    changed = [not torch.equal(before, after) for (before, _), (after, _) in pairwise(states)]
    for (before, _), (after, _) in pairwise(states):
        assert torch.equal(after[before != MASK], before[before != MASK]), "tokens stay"
    assert sum(changed) <= 3
    assert states[-1][1] == 1 + sum(changed[:-1]), "the network is called only after a change"


def test_plain_bound_of_a_uniform_prediction():
    _, plain = same_weights()
    torch.nn.init.zeros_(plain.output_layer["linear"].weight)
    torch.nn.init.zeros_(plain.output_layer["linear"].bias)
    rows = torch.from_numpy(TINY.ids(4096))
    assert plain_bound(plain, rows, 512, torch.float32) == pytest.approx(math.log(10), rel=0.02)


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_rounds_are_interleaved_and_warmup_is_not_counted():
    order: list[str] = []
    clock = iter(range(100))
    runs = {name: lambda name=name: order.append(name) or float(next(clock)) for name in "ab"}
    progress: list[int] = []
    assert measure.measure_rounds(runs, repeats=2, warmup=1, progress=progress.append) == {
        "a": [2.0, 4.0],
        "b": [3.0, 5.0],
    }
    assert order == ["a", "b"] * 3
    assert sum(progress) == 6


def test_stopwatch_and_matrix_rate_are_plausible():
    assert 0.02 < measure.stopwatch(lambda: time.sleep(0.02), CPU)() < 1.0
    assert 1e9 < measure.matrix_rate(CPU, torch.float32, repeats=2) < 1e13


def allocate(mebibytes: int):
    """Return a run that allocates memory."""
    return lambda: float(torch.ones(mebibytes, 2**18).sum())


def test_peak_memory_excludes_the_memory_of_this_process():
    ballast = torch.ones(500, 2**18)
    assert measure.peak_gib(allocate, (200,), CPU) == pytest.approx(200 / 1024, rel=0.25)
    assert ballast.sum() > 0


def test_an_interrupt_ends_the_other_process():
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(2.0, signal.pthread_kill, (main, signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        measure.run_in_process(time.sleep, 60.0)
    assert time.monotonic() - start < 30
    assert measure.run_in_process(signal.getsignal, signal.SIGINT) == signal.SIG_IGN
    with pytest.raises(ZeroDivisionError):
        measure.run_in_process(divmod, 7, 0)


def test_figures_of_a_result():
    shown = Result(tokens=600, count=3, flops=2e9, seconds=[4.0, 2.0, 3.0], peak_gib=1.5).as_dict(MACHINE)
    assert (shown["tokens_per_second"], shown["ms_per_step"], shown["steps"]) == (200, 1000, 3)
    assert shown["mfu"] == pytest.approx(2 / 3)


def test_a_ratio_compares_tokens_per_second_round_by_round():
    one = Result(100, 1, 0.0, [1.0, 10.0, 1.0], 1.0)
    other = Result(200, 1, 0.0, [4.0, 60.0, 8.0], 4.0)
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0), "median and quartiles"
    assert Ratio.of(one, other) == Ratio(Spread(3.0, 2.5, 3.5), 0.25)
    assert Ratio.of(one, replace(other, peak_gib=None)).memory is None
    assert Report(MACHINE, {}, {"a": one, "b": other}).as_dict()["against"]["b"]["memory"] == 0.25


# ---- training and likelihoods ----------------------------------------------------------------------------------------


def test_a_training_run_continues_the_previous_one():
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.TrainStep, "step", lambda self, batches, step: steps.append((len(batches), step)))
        run = train.prepare_training(Workload(TINY, 3))
        run()
        run()
    assert steps == [(1, step) for step in range(6)]


def test_a_likelihood_costs_the_forward_pass_of_training():
    work = Workload(TINY, 3, optimizer=Muon(warmup=7), accumulation=2)
    report = compare_likelihood(work, ["plain", "training"], repeats=1, warmup=0, memory=False)
    shown, results = report.as_dict(), report.results
    assert {result.tokens for result in results.values()} == {3 * 4 * 8}
    flops = 3 * 4 * 8 * flops_per_token(TINY.config, 8, TINY.objective, TINY.schedule)
    assert results["training"].flops == pytest.approx(flops)
    assert results["unmask"].flops == pytest.approx(flops / 3), "half as many as the backward pass"
    assert "ms_per_call" in shown["results"]["plain"]
    assert shown["setup"]["training"]["optimizer"]["warmup"] == 7
    assert shown["setup"]["training"]["accumulation"] == 2


# ---- sampling --------------------------------------------------------------------------------------------------------


def test_reported_network_calls_are_made():
    diffusion = DiffusionSampling(TINY, 4)
    counted: list[int] = []
    inner = diffusion.network._run
    diffusion.network._run = lambda *args, **kwargs: counted.append(1) or inner(*args, **kwargs)
    diffusion.run()
    assert len(counted) == diffusion.calls <= 4
    assert DiffusionSampling(TINY).calls == AutoregressiveSampling(TINY).calls == 8
    plain = PlainSampling(TINY, 4)
    plain.run()
    assert 1 <= plain.calls <= 4


def test_a_part_of_a_run_estimates_the_whole():
    """Steps of known cost: constant for diffusion, growing for the autoregressive model."""
    clock, long = [0.0], replace(TINY, length=100)

    def stream(cost):
        def states(prompt: int = 0):
            yield None
            for step in range(prompt, long.length):
                clock[0] += 50.0 if step < prompt + 3 else cost(step)
                yield None

        return states

    diffusion, autoregressive = DiffusionSampling(long), AutoregressiveSampling(long)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.sample.time.perf_counter", lambda: clock[0])
        patch.setattr(diffusion, "stream", stream(lambda step: 3.0))
        patch.setattr(autoregressive, "stream", stream(lambda step: 1.0 + step))
        assert diffusion.estimate_seconds(2) == pytest.approx(300.0)
        assert autoregressive.estimate_seconds(2) == pytest.approx(100 * (4.5 + 67.5) / 2)


def test_only_runs_beyond_the_limit_are_estimated():
    benchmark = DiffusionSampling(replace(TINY, length=64))
    estimates: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "estimate_seconds", lambda steps: estimates.append(steps) or 100.0)
        assert not sample.choose_run(benchmark, repeats=2, limit=1000.0)[1]
        run, estimated = sample.choose_run(benchmark, repeats=2, limit=10.0)
        assert estimated
        assert run() == 100.0
    assert estimates[-1] >= 3
    assert sample.prepare_short_run(AutoregressiveSampling, TINY, None)() > 0


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [
        ([4.0, 4.0, 4.0], [1.0, 4.0 / 2, 16.0], 100 * 2 ** (1 / 3)),
        ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], None),
        ([2.0, 3.0, 4.0], [1.0, 2.0, 3.0], None),
        ([1.0, 9.0, 1.0], [3.0, 3.0, 9.0], 100 * 2 ** (1 / 3)),
        ([1.0, 2.0, 8.0], [2.0, 2.0, 2.0], 100.0),
    ],
)
def test_a_crossing_is_where_the_final_winner_takes_the_lead(a, b, at):
    lead = [math.log(theirs / ours) for ours, theirs in zip(a, b, strict=True)]
    found = sample.find_crossing([50, 100, 200], lead)
    assert found == (None if at is None else pytest.approx(at))


def test_crossovers_along_lengths_and_batches():
    def cell(length: int, batch: int, mdlm: float, ar: float) -> sample.Cell:
        return sample.Cell(length, batch, {"mdlm": Result(1, 1, 0.0, [mdlm]), "ar": Result(1, 1, 0.0, [ar])})

    cells = [cell(128, 1, 2.0, 1.0), cell(512, 1, 2.0, 4.0), cell(128, 4, 8.0, 1.0), cell(512, 4, 8.0, 4.0)]
    found = {
        (one.axis, one.fixed): (one.winner, one.loser, one.at) for one in sample.find_crossovers(cells, "mdlm", "ar")
    }
    assert found == {
        ("length", 1): ("mdlm", "ar", pytest.approx(256)),
        ("length", 4): ("ar", "mdlm", None),
        ("batch", 512): ("ar", "mdlm", pytest.approx(2)),
        ("batch", 128): ("ar", "mdlm", None),
    }


# ---- setups ----------------------------------------------------------------------------------------------------------


def test_random_rows_and_networks_of_a_setup():
    setup = replace(TINY, mask_token_id=3)
    ids = setup.ids(200)
    assert set(ids.reshape(-1)) == set(range(11)) - {3}, "every token but the mask"
    assert (setup.rows(200)[[5]].input_ids == ids[5]).all()
    for network in (TINY.network(), TINY.plain_network()):
        assert all(parameter.any() for parameter in network.parameters()), "no parameter is zero"
    causal = TINY.inference_network(causal=True)
    assert causal.num_parameters() == TINY.network().num_parameters()
    back = replace(TINY, spec=CausalSpec(**SPEC.model_dump(include={"size", "hidden_size", "layers", "heads"})))
    assert back.inference_network(causal=False).num_parameters() == causal.num_parameters()


def setup_of(what: list[str], vocab_size: int | None = None) -> Setup:
    return make_setup(read_bench_recipe(what, [], CPU), is_named(what), vocab_size, CPU)


def test_options_recipes_and_checkpoints_become_setups(mdlm_folder):
    setup = setup_of(["model.size=tiny", "data.length=64"])
    assert (setup.spec.size, setup.length, setup.batch, setup.vocab_size) == ("tiny", 64, 16, 257)
    assert setup.precision == torch.float32
    assert setup_of(["training.precision=bf16"]).precision == torch.bfloat16
    setup = setup_of(["paper/text8"], 28)
    assert (setup.spec.size, setup.length, setup.batch, setup.mask_token_id) == ("small", 256, 512, 27)
    assert setup_of(["default"]).vocab_size > 256
    setup = setup_of([str(mdlm_folder)])
    assert (setup.length, setup.network().config.hidden_size) == (48, 32)
    with pytest.raises(UnmaskError, match="leave --vocab out"):
        setup_of([str(mdlm_folder)], 9)
    with pytest.raises(UnmaskError, match="add --vocab"):
        setup_of(["paper/text8"])
    for model, size in (("{name: causal, layers: 2}", "nano"), ("{name: causal, size: tiny}", "tiny")):
        recipe = read_bench_recipe([f"model={model}", "objective=ar"], [], CPU)
        assert recipe.model.size == size, "the default size is nano"


def test_the_benchmark_of_trunks_writes_its_report(tmp_path, monkeypatch, capsys):
    options = ["--device", "cpu", "--lengths", "4", "8", "--length", "4", "--batch", "2", "--steps", "1", "--out"]
    monkeypatch.setattr("sys.argv", ["trunks.py", *options, str(tmp_path / "r.json")])
    runpy.run_module("benchmarks.trunks", run_name="__main__")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["left_out"] == []
    parameters = [row["parameters"] for row in report["train"].values()]
    assert max(parameters) < 1.06 * min(parameters)
    caches = {name: [row[length]["cache_mib"] for length in ("4", "8")] for name, row in report["step"].items()}
    assert caches["mamba"][0] == caches["mamba"][1]
    assert caches["causal"][0] < caches["causal"][1]
    assert "of the DiT" in capsys.readouterr().out
