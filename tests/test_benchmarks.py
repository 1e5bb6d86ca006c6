"""The plain implementation is what it says, and what the benchmarks say about a run adds up."""

from __future__ import annotations

import math
import signal
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from unmask.benchmarks import bounds, contest, train
from unmask.benchmarks.apart import apart
from unmask.benchmarks.choices import chosen_recipe, precision_named, setup_for
from unmask.benchmarks.crossing import find_crossing
from unmask.benchmarks.plain import PlainDiT, plain_bound, plain_walk
from unmask.benchmarks.report import FORWARD_SHARE, Place, Ratio, Report, Result
from unmask.benchmarks.sample import Autoregressive, Diffusion, Plain, Sampling
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.sweep import Cell, Sweep, choose_run, overtakings, prepare_excerpt
from unmask.benchmarks.timing import Spread, matrix_rate, peak_gib, race, speed_ratio, stopwatch
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
PLACE = Place("here", 1, 1e9)


def same_weights(setup: Setup = TINY):
    """Our network and the plain one, with the same weights, none of them zero."""
    torch.manual_seed(0)
    ours, plain = setup.network().eval(), setup.plain_network().eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@pytest.mark.parametrize("size", ["nano", "small"])
def test_plain_network_has_our_parameters(size: str) -> None:
    meta = torch.device("meta")
    setup = replace(TINY, spec=DiTSpec(size=size), vocab_size=50_258, mask_token_id=50_257, device=meta)
    with meta:
        ours = setup.spec.build(50_258, 50_257, 8)
        plain = PlainDiT(setup.plain_shape())
    shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
    assert {name: parameter.shape for name, parameter in plain.named_parameters()} == shapes


def test_plain_loss_and_gradients_are_ours() -> None:
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


def test_plain_trainer_learns_and_averages() -> None:
    torch.manual_seed(0)
    trainer = train.PlainTrainer(TINY.plain_network(), torch.float32, ema=0.75)
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    trainer.step(torch.from_numpy(TINY.ids(4)))
    for old, new, average in zip(before, trainer.parameters, trainer.average, strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(average, 0.75 * old + 0.25 * new.detach())


def test_plain_step_reveals_at_the_right_rate_and_by_the_networks_law() -> None:
    _, plain = same_weights()
    torch.manual_seed(1)
    batch, length, steps = 20_000, 2, 4
    first = plain(torch.full((1, length), 10)).softmax(-1)[0]
    states = plain_walk(plain, batch, length, steps, torch.float32)
    next(states)
    canvas, _ = next(states)
    for position in range(length):
        seen = torch.bincount(canvas[:, position], minlength=11) / batch
        expected = first[position] / steps
        expected[10] = 1 - 1 / steps
        assert expected[10] > 0
        error = (expected * (1 - expected) / batch).sqrt()
        assert ((seen - expected).abs() < 4.5 * error + 1e-9).all()
    *_, (done, calls) = states
    assert (done != 10).all()
    assert calls == steps


def test_plain_walk_keeps_written_tokens_and_reuses_what_stands_still() -> None:
    _, plain = same_weights()
    torch.manual_seed(0)
    walk = list(plain_walk(plain, 1, 3, 60, torch.float32))
    changes = 0
    for (before, _), (after, _) in pairwise(walk):
        written = before != 10
        assert torch.equal(after[written], before[written])
        changes += not torch.equal(before, after)
    assert changes <= 3
    last_changed = torch.equal(walk[-1][0], walk[-2][0])
    assert walk[-1][1] == 1 + changes - (not last_changed)


def test_plain_bound_is_the_mean_of_its_rows() -> None:
    _, plain = same_weights()
    with torch.no_grad():
        plain.output_layer.linear.weight.zero_()
        plain.output_layer.linear.bias.zero_()
    rows = torch.from_numpy(TINY.ids(4096))
    assert plain_bound(plain, rows, 512, torch.float32) == pytest.approx(math.log(10), rel=0.02)


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_race_goes_round_and_forgets_the_warmup() -> None:
    order: list[str] = []
    clock = iter(range(100))

    def contender(name: str):
        return lambda: order.append(name) or float(next(clock))

    seen: list[int] = []
    seconds = race({"a": contender("a"), "b": contender("b")}, repeats=2, warmup=1, progress=seen.append)
    assert order == ["a", "b"] * 3
    assert seconds == {"a": [2.0, 4.0], "b": [3.0, 5.0]}
    assert sum(seen) == 6


def test_speed_ratio_is_of_rounds_not_of_medians() -> None:
    assert speed_ratio([1.0, 10.0, 1.0], [2.0, 30.0, 4.0]).median == 3.0


def test_stopwatch_measures_the_work() -> None:
    assert 0.02 < stopwatch(lambda: time.sleep(0.02), CPU)() < 1.0


def test_matrix_rate_is_that_of_products() -> None:
    assert 1e9 < matrix_rate(CPU, torch.float32, repeats=2) < 1e13


def hold(mebibytes: int):
    """A run that holds some memory."""
    return lambda: float(torch.ones(mebibytes, 2**18).sum())


def test_peak_of_a_process_is_what_its_work_adds() -> None:
    ballast = torch.ones(500, 2**18)
    assert peak_gib(hold, (200,), CPU) == pytest.approx(200 / 1024, rel=0.25)
    assert ballast.sum() > 0


def test_results_add_up() -> None:
    result = Result(tokens=600, units=3, flops=2e9, seconds=[4.0, 2.0, 3.0], peak_gib=1.5)
    shown = result.as_dict(PLACE)
    assert shown["tokens_per_second"] == 600 / shown["seconds"]["median"] == 200
    assert shown["ms_per_step"] == 1000
    assert shown["steps"] == 3
    assert shown["mfu"] == pytest.approx(2 / 3)


def test_ratio_is_of_tokens_a_second_and_of_memory() -> None:
    one = Result(100, 1, 0.0, [1.0, 1.0], 1.0)
    other = Result(200, 1, 0.0, [4.0, 4.0], 4.0)
    ratio = Ratio.of(one, other)
    assert ratio.speed.median == 2.0
    assert ratio.memory == 0.25
    assert Ratio.of(one, replace(other, peak_gib=None)).memory is None
    assert Report(PLACE, {}, {"a": one, "b": other}).as_dict()["against"]["b"]["memory"] == 0.25


def test_training_is_measured_beside_plain() -> None:
    work = train.Training(TINY, steps=2)
    report = contest.measure(work, train.CONTENDERS, repeats=2, warmup=0, memory=False)
    assert list(report.results) == ["unmask", "plain"]
    for result in report.results.values():
        assert result.tokens == 2 * 4 * 8
        assert len(result.seconds) == 2
    assert report.ratios["plain"].speed.median > 0
    expected = work.tokens * flops_per_token(TINY.config, 8, TINY.objective, TINY.schedule)
    assert report.results["unmask"].flops == report.results["plain"].flops == pytest.approx(expected)


def test_every_training_run_takes_its_steps() -> None:
    work = train.Training(TINY, steps=3)
    built = []
    stepper, feed = train.build(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build", lambda _: (stepper, feed))
        patch.setattr(stepper, "step", lambda batches, step: built.append((len(batches), step)))
        run = train.prepare(work)
        run()
        run()
    assert built == [(1, step) for step in range(6)]


def test_bounds_count_forward_passes_alone() -> None:
    work = bounds.Scoring(TINY, calls=3)
    report = contest.measure(work, bounds.CONTENDERS, repeats=1, warmup=0, memory=False)
    results = report.results
    assert results["unmask"].tokens == results["training"].tokens == 3 * 4 * 8
    assert results["unmask"].flops == pytest.approx(results["training"].flops * FORWARD_SHARE)
    assert "ms_per_call" in report.as_dict()["results"]["plain"]


def test_a_forward_pass_is_a_third_of_both() -> None:
    """Of a layer in the middle of a network, counted by torch as it runs."""
    layer, x = torch.nn.Linear(8, 16), torch.ones(4, 8, requires_grad=True)
    counted = []
    for passes in (lambda: layer(x), lambda: layer(x).sum().backward()):
        with FlopCounterMode(display=False) as counter:
            passes()
        counted.append(counter.get_total_flops())
    assert counted[0] / counted[1] == FORWARD_SHARE


def test_bounds_are_compared_with_the_training_of_their_recipe() -> None:
    work = bounds.Scoring(TINY, calls=3, optimizer=Muon(warmup=7), accumulation=2)
    assert work.training == train.Training(TINY, Muon(warmup=7), 3, 2)
    assert work.as_dict()["training"]["optimizer"]["warmup"] == 7
    assert work.as_dict()["training"]["accumulation"] == 2


def test_walkers_promise_and_make_their_calls() -> None:
    diffusion = Diffusion(Sampling(TINY, "mdlm", 4))
    counted: list[int] = []
    inner = diffusion.network._run
    diffusion.network._run = lambda *args, **kwargs: counted.append(1) or inner(*args, **kwargs)
    diffusion.fill()
    assert len(counted) == diffusion.calls <= 4
    assert Diffusion(Sampling(TINY, "mdlm")).calls == 8
    assert Autoregressive(Sampling(TINY, "ar")).calls == 8
    plain = Plain(Sampling(TINY, "plain", 4))
    plain.fill()
    assert 1 <= plain.calls <= 4


def test_excerpts_stand_for_whole_walks() -> None:
    """With steps that take known times: constant for diffusion, growing for the twin."""
    clock, long = [0.0], replace(TINY, length=100)

    def steps(cost):
        def walk(given: int = 0):
            yield None
            for step in range(given, long.length):
                clock[0] += 50.0 if step < given + 3 else cost(step)
                yield None

        return walk

    diffusion, twin = Diffusion(Sampling(long, "mdlm")), Autoregressive(Sampling(long, "ar"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.benchmarks.sample.time.perf_counter", lambda: clock[0])
        patch.setattr(diffusion, "walk", steps(lambda step: 3.0))
        patch.setattr(twin, "walk", steps(lambda step: 1.0 + step))
        assert diffusion.seconds_by_excerpt(2) == pytest.approx(300.0)
        assert twin.seconds_by_excerpt(2) == pytest.approx(100 * (4.5 + 67.5) / 2)


def test_long_walks_are_cut_and_short_ones_are_not() -> None:
    walker = Diffusion(Sampling(replace(TINY, length=64), "mdlm"))
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walker, "seconds_by_excerpt", lambda steps: asked.append(steps) or 100.0)
        run, estimated = choose_run(walker, repeats=2, limit=1000.0)
        assert not estimated
        run, estimated = choose_run(walker, repeats=2, limit=10.0)
        assert estimated
        assert run() == 100.0
    assert asked[-1] >= 3
    assert prepare_excerpt(Sampling(TINY, "ar"))() > 0


def test_a_sweep_measures_every_cell() -> None:
    sweep = Sweep(TINY, [4, 8], [1, 2], [4], ("one by one", "ar", "plain"), repeats=1, warmup=0, memory=False)
    heard: list[int] = []
    report = sweep.measure(heard.append)
    assert sum(heard) == sweep.cells == 4
    assert {(cell.length, cell.batch) for cell in report.cells} == {(4, 1), (8, 1), (4, 2), (8, 2)}
    assert set(report.cells[0].results) == {"mdlm T=4", "mdlm one by one", "ar", "plain T=4"}
    assert list(report.cells[0].ratios) == ["plain T=4"]
    for cell in report.cells:
        assert cell.results["ar"].tokens == cell.length * cell.batch
        assert cell.results["mdlm one by one"].units == cell.length
    assert len(report.overtakings) == 8


@pytest.mark.parametrize(
    ("a", "b", "winner", "at"),
    [
        ([4.0, 4.0, 4.0], [1.0, 4.0 / 2, 16.0], "a", 100 * 2 ** (1 / 3)),
        ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], "a", None),
        ([2.0, 3.0, 4.0], [1.0, 2.0, 3.0], "b", None),
        ([1.0, 9.0, 1.0], [3.0, 3.0, 9.0], "a", 100 * 2 ** (1 / 3)),
        ([1.0, 2.0, 8.0], [2.0, 2.0, 2.0], "b", 100.0),
    ],
)
def test_crossing_is_where_the_last_winner_takes_the_lead(a, b, winner: str, at: float | None) -> None:
    found = find_crossing([50, 100, 200], {"a": a, "b": b})
    assert found.winner == winner
    assert {found.winner, found.loser} == {"a", "b"}
    assert found.at == (None if at is None else pytest.approx(at))


def test_crossings_are_sought_along_lengths_and_batches() -> None:
    def cell(length: int, batch: int, mdlm: float, ar: float) -> Cell:
        return Cell(length, batch, {"mdlm": Result(1, 1, 0.0, [mdlm]), "ar": Result(1, 1, 0.0, [ar])})

    cells = [cell(128, 1, 2.0, 1.0), cell(512, 1, 2.0, 4.0), cell(128, 4, 8.0, 1.0), cell(512, 4, 8.0, 4.0)]
    found = {(one.axis, one.fixed): one.crossing for one in overtakings(cells, ("mdlm", "ar"))}
    assert found["length", 1].at == pytest.approx(256)
    assert found["length", 1].winner == "mdlm"
    assert found["length", 4].at is None
    assert found["batch", 512].at == pytest.approx(2)
    assert found["batch", 512].winner == "ar"
    assert found["batch", 128].at is None


def test_rows_hold_every_token_but_the_mask() -> None:
    setup = replace(TINY, mask_token_id=3)
    ids = setup.ids(200)
    assert set(ids.reshape(-1)) == set(range(11)) - {3}
    assert (setup.rows(200)[[5]].input_ids == ids[5]).all()


def test_a_twin_has_the_same_sizes() -> None:
    causal = TINY.reader(causal=True)
    assert causal.config.hidden_size == 16
    assert causal.num_parameters() == TINY.network().num_parameters()
    back = replace(TINY, spec=CausalSpec(**SPEC.model_dump(include={"size", "hidden_size", "layers", "heads"})))
    assert back.reader(causal=False).num_parameters() == causal.num_parameters()


def test_nothing_stays_zero() -> None:
    assert all(parameter.any() for parameter in TINY.network().parameters())
    assert all(parameter.any() for parameter in TINY.plain_network().parameters())


def test_options_recipes_and_checkpoints_become_setups(mdlm_folder) -> None:
    recipe = chosen_recipe(["model.size=tiny"], ["data.length=64"], CPU)
    setup = setup_for(recipe, False, None, CPU)
    assert (setup.spec.size, setup.length, setup.batch, setup.vocab_size) == ("tiny", 64, 16, 257)
    recipe = chosen_recipe(["paper/text8"], [], CPU)
    with pytest.raises(UnmaskError, match="--vocab"):
        setup_for(recipe, True, None, CPU)
    setup = setup_for(recipe, True, 28, CPU)
    assert (setup.spec.size, setup.length, setup.batch, setup.mask_token_id) == ("small", 256, 512, 27)
    assert setup_for(chosen_recipe(["default"], [], CPU), True, None, CPU).vocab_size > 256
    setup = setup_for(chosen_recipe([str(mdlm_folder)], [], CPU), True, None, CPU)
    assert (setup.length, setup.network().config.hidden_size) == (48, 32)
    with pytest.raises(UnmaskError, match="leave --vocab out"):
        setup_for(chosen_recipe([str(mdlm_folder)], [], CPU), True, 9, CPU)


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        (["model.name=causal", "objective=ar"], "nano"),
        (["model=causal", "objective=ar"], "nano"),
        (["model={name: causal, layers: 2}", "objective=ar"], "nano"),
        (["model.name=causal", "model.size=tiny", "objective=ar"], "tiny"),
        (["model={name: dit, size: small}"], "small"),
        ([], "nano"),
    ],
)
def test_another_model_has_the_size_of_the_defaults_unless_told(overrides, size) -> None:
    assert chosen_recipe(overrides, [], CPU).model.size == size


def test_precision_by_name() -> None:
    assert precision_named("auto", CPU) == torch.float32
    assert precision_named("bf16", CPU) == torch.bfloat16


def test_an_interrupt_does_not_wait_for_work_that_is_apart():
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(2.0, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        apart(time.sleep, 60.0)
    assert time.monotonic() - start < 30
    assert apart(divmod, 7, 2) == (3, 1)
    assert apart(signal.getsignal, signal.SIGINT) == signal.SIG_IGN
    with pytest.raises(ZeroDivisionError):
        apart(divmod, 7, 0)
