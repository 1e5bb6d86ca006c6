"""The exact draw of a whole canvas from the factorised prediction, given that an automaton accepts it.

Each call the head sees every masked position, some rows at a time, and keeps of its prediction the masses of the kinds
of tokens that the automaton tells apart. A path through the automaton is drawn by these, and then, where a token is to
be written, one among those that the path allows there. Together they are a draw from the prediction, given the match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from unmask.constraints import Automaton
from unmask.constraints.automaton import Bools, Ints
from unmask.errors import UnmaskError
from unmask.random import Purpose, exponential
from unmask.samplers.base import Drawn, JointTokenSampler, ParticleWeights, Positions, State
from unmask.samplers.token_sampling import TokenSampler, rows_at_once, sample_tokens

NOISE_AT_ONCE = 1 << 20
WIDTH = 16
MANY_ARCS = 4096
"""From so many on it pays to take logarithms of states and not of arcs."""
SAFE = 600.0
"""Nats between the largest and the smallest of factors whose products float64 can hold."""

Reduce = Callable[[Tensor], Tensor]


def sum_of_logs(x: Tensor) -> Tensor:
    """Over the last dimension."""
    return x.logsumexp(-1)


def largest(x: Tensor) -> Tensor:
    """Over the last dimension; in the place of `sum_of_logs` it makes paths the most likely ones."""
    return x.amax(-1)


class Groups:
    """Reduces the last dimension of a tensor group by group; groups may overlap and differ in size.

    A group is reduced 16 members at a time, until one is left: the same order whatever else is in the tensor.
    """

    def __init__(self, owner: Ints, member: Ints, groups: int, size: int, device: torch.device) -> None:
        """`member` [M], sorted by the group `owner` [M], of `size` entries."""
        self._levels: list[Tensor] = []
        while not self._levels or len(member) > groups:
            counts = np.bincount(owner, minlength=groups)
            parts = np.maximum(1, -(-counts // WIDTH))
            begin, rank = np.cumsum(parts) - parts, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
            index = np.full(int(parts.sum()) * WIDTH, size)
            index[begin[owner] * WIDTH + rank] = member
            self._levels.append(torch.as_tensor(index.reshape(-1, WIDTH), device=device))
            size = len(index) // WIDTH
            owner, member = np.repeat(np.arange(groups), parts), np.arange(size)

    def __call__(self, x: Tensor, reduce: Reduce) -> Tensor:
        """[..., G] of x [..., size]; minus infinity for a group without members."""
        for index in self._levels:
            x = reduce(torch.nn.functional.pad(x, (0, 1), value=-torch.inf)[..., index])
        return x


class Paths:
    """The arcs of an automaton: out of state s go those with the sets `sets[s]` [W] to the states `ends[s]` [W]."""

    def __init__(self, automaton: Automaton, device: torch.device) -> None:
        contains, sets, ends = _arcs(automaton)
        self.count = len(contains)
        self.states = automaton.states
        self.contains = torch.as_tensor(contains, device=device)
        """[A, K] the kinds of tokens in each set."""
        owner, kinds = np.nonzero(contains)
        self.masses = Groups(owner, kinds, len(contains), automaton.kinds, device)
        self._sets, self._ends = torch.as_tensor(sets, device=device), torch.as_tensor(ends, device=device)
        self._widths = _by_width(self._sets, self._ends, self.count)
        self._free = self.count == self.states == 1
        """Whether positions have nothing to do with one another."""
        self._many = bool((self._sets < self.count).sum() > MANY_ARCS)
        self._accepts = torch.as_tensor(np.where(automaton.accepts, 0.0, -np.inf), device=device)

    def filter(self, log_m_BLA: Tensor, real_BL: Tensor, reduce: Reduce = sum_of_logs) -> Tensor:
        """[L + 1, B, S] the log-chance of acceptance from each state before each position; pads are passed over."""
        batch, length, _ = log_m_BLA.shape
        if self._free:
            each = log_m_BLA[..., 0].masked_fill(~real_BL, 0.0)
            return torch.nn.functional.pad(each.flip(1).cumsum(dim=1).flip(1), (0, 1)).T[..., None]
        hope = log_m_BLA.new_empty(length + 1, batch, self.states)
        hope[length] = self._accepts
        closed = torch.nn.functional.pad(log_m_BLA, (0, 1), value=-torch.inf)
        for position in reversed(range(length)):
            further = self._before(closed[:, position], hope[position + 1], reduce)
            hope[position] = torch.where(real_BL[:, position, None], further, hope[position + 1])
        return hope

    def _before(self, log_m: Tensor, hope: Tensor, reduce: Reduce) -> Tensor:
        """[B, S] the log-chance of acceptance before a position from those [B, S] behind it."""
        if self._many and reduce is sum_of_logs and (_spread(log_m) + _spread(hope)).amax() < SAFE:
            return self._sum(log_m, hope)
        return self._by_width([reduce(log_m[:, sets] + hope[:, ends]) for _, sets, ends in self._widths], hope)

    def _sum(self, log_m: Tensor, hope: Tensor) -> Tensor:
        """The same by plain sums, for masses and chances that are near enough to one another."""
        top_m, top_hope = _top(log_m), _top(hope)
        mass, chance = (log_m - top_m).exp(), (hope - top_hope).exp()
        parts = [(mass[:, sets] * chance[:, ends]).sum(dim=-1) for _, sets, ends in self._widths]
        return self._by_width(parts, hope).log() + top_m + top_hope

    def _by_width(self, parts: list[Tensor], like: Tensor) -> Tensor:
        out = torch.empty_like(like)
        for (states, _, _), part in zip(self._widths, parts, strict=True):
            out[:, states] = part
        return out

    def draw(
        self, hope: Tensor, log_m_BLA: Tensor, real_BL: Tensor, seeds_B: Tensor, step: int, greedy: bool
    ) -> Tensor:
        """[B, L] the sets along a path drawn from the law of paths given acceptance, or along the likeliest."""
        if self._free:
            return torch.zeros_like(real_BL, dtype=torch.int64)
        closed = torch.nn.functional.pad(log_m_BLA, (0, 1), value=-torch.inf)
        state = torch.zeros_like(seeds_B)
        chosen = []
        for position, race in enumerate(self._races(seeds_B, step, log_m_BLA.shape[1], greedy)):
            sets, ends = self._sets[state], self._ends[state]
            score = closed[:, position].gather(1, sets) + hope[position + 1].gather(1, ends) + race
            arc = score.argmax(dim=1, keepdim=True)
            chosen.append(sets.gather(1, arc)[:, 0])
            state = torch.where(real_BL[:, position], ends.gather(1, arc)[:, 0], state)
        return torch.stack(chosen, dim=1)

    def _races(self, seeds_B: Tensor, step: int, length: int, greedy: bool) -> Iterator[Tensor]:
        """For each position what is added to the log-weights [B, W] of arcs, so that the largest is an exact draw."""
        width = self._sets.shape[1]
        arc = torch.arange(width, device=seeds_B.device)
        size = max(1, NOISE_AT_ONCE // (len(seeds_B) * width))
        for part in torch.arange(length, device=seeds_B.device).split(size):
            if greedy:
                yield from torch.zeros(len(part), 1, 1, device=seeds_B.device)
            else:
                seeds = seeds_B[:, None]
                yield from -exponential(seeds, Purpose.PATH, step, part[:, None, None], arc).double().log()


def _top(x: Tensor) -> Tensor:
    """[B, 1] the largest of each row, 0 for a row that has nothing."""
    top = x.amax(dim=1, keepdim=True)
    return top.masked_fill(top.isneginf(), 0.0)


def _spread(x: Tensor) -> Tensor:
    """[B, 1] the difference between the largest of each row and the smallest that is finite."""
    top = _top(x)
    return top - torch.where(x.isneginf(), top, x).amin(dim=1, keepdim=True)


def _by_width(sets: Tensor, ends: Tensor, none: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """States by the number of arcs that they have, up to 4, 16, 64, ...: the states, their sets and their ends."""
    width = (sets < none).sum(dim=1).clamp_min(1)
    power = (width.double().log2() / 2).ceil().long()
    parts = []
    for one in power.unique().tolist():
        (states,) = (power == one).nonzero(as_tuple=True)
        size = int(width[states].max())
        parts.append((states, sets[states, :size], ends[states, :size]))
    return parts


def _arcs(automaton: Automaton) -> tuple[Bools, Ints, Ints]:
    """Sets of kinds [A, K]; and [S, W] the sets and ends of the arcs out of each state, filled up with A and 0."""
    state, kind = np.nonzero(automaton.move >= 0)
    end = automaton.move[state, kind]
    arcs, place = np.unique(state * automaton.states + end, return_inverse=True)
    which = _same_sets(place.reshape(-1), kind)
    contains = np.zeros((int(which.max(initial=-1)) + 1, automaton.kinds), dtype=bool)
    contains[which[place.reshape(-1)], kind] = True
    begin, finish = arcs // automaton.states, arcs % automaton.states
    counts = np.bincount(begin, minlength=automaton.states)
    slot = np.arange(len(arcs)) - (np.cumsum(counts) - counts)[begin]
    sets = np.full((automaton.states, max(1, counts.max())), len(contains))
    ends = np.zeros_like(sets)
    sets[begin, slot], ends[begin, slot] = which, finish
    return contains, sets, ends


def _same_sets(arc: Ints, kind: Ints) -> Ints:
    """[E] a number for the set of kinds of every arc, from pairs (arc, kind) [M]; random sums tell sets apart."""
    names = np.random.default_rng(0).integers(1 << 62, size=int(kind.max(initial=-1)) + 1)
    sums = np.zeros(int(arc.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(sums, arc, names[kind])
    return np.unique(sums, return_inverse=True)[1].reshape(-1)


Head = Callable[[Tensor], Tensor]


class ConstrainedTokenSampler(JointTokenSampler):
    """A token rule under a constraint. So many rows at a time are `particles` of one sequence and are weighed, at the
    price of a second filter a call; 0 for none.

    Where truncation leaves no path to a sequence, it is lifted for that sequence and that call; a particle without one
    among others that have one weighs nothing, as the truncated model gives it no chance. What a hybrid rule takes for
    sure is such a truncation, to one token. `eos` is what fills a row behind its text, if anything does. The `end` that
    a row is given with is shown to the network, and none of the constraint's.
    """

    def __init__(
        self,
        rule: TokenSampler,
        automaton: Automaton,
        device: torch.device,
        particles: int = 0,
        eos: int | None = None,
        end: int | None = None,
    ) -> None:
        self.rule = rule
        self.eos = eos
        self.end = end
        self.untruncated = TokenSampler(temperature=rule.temperature)
        self.particles = particles
        self.automaton = automaton
        self.paths = Paths(automaton, device)
        self.greedy = rule.temperature == 0
        self.reduce = largest if self.greedy else sum_of_logs
        token = automaton.kind.argsort(kind="stable")
        token = token[automaton.kind[token] >= 0]
        self.kinds = Groups(automaton.kind[token], token, automaton.kinds, len(automaton.kind), device)
        self.kind = torch.as_tensor(automaton.kind, device=device)
        self._gates: dict[int, Tensor] = {}

    def sample_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
        read, seeds = self._read(state), state.canvas.seeds
        lifted = torch.zeros_like(seeds, dtype=torch.bool)
        log_m = self._masses(head, hidden, state, at, lifted)
        hope = self.paths.filter(log_m, read, self.reduce)
        dead = self._dead(state, lost := hope[0, :, 0].isneginf())
        if bool(lost.any()):
            lifted = lost
            log_m = self._masses(head, hidden, state, at, lifted)
            hope = self.paths.filter(log_m, read, self.reduce)
        if bool(hope[0, :, 0].isneginf().any()):
            raise UnmaskError("The network gives no chance to any canvas that the constraint accepts; relax it.")
        sets = self.paths.draw(hope, log_m, read, seeds, state.call, self.greedy)[wanted]
        chosen = hidden[_numbers(state, at)[wanted]]
        tokens, confidence = self._tokens(head, chosen, state, wanted, sets, lifted)
        log_z = hope[0, :, 0].masked_fill(dead, -torch.inf)
        particle_weights = self._evidence(state, log_m, log_z, wanted, tokens) if self.particles else None
        return Drawn(tokens, confidence, particle_weights)

    def _read(self, state: State) -> Tensor:
        """[B, L] the positions that the automaton reads: those of the text."""
        real = state.canvas.attention_mask
        if self.end is None:
            return real
        return (real & (state.canvas.ids != self.end)).flip(1).cumsum(dim=1).flip(1) > 0

    def _dead(self, state: State, lost: Tensor) -> Tensor:
        """[B] the walks that have lost every truncated path, where others that weigh something have one left."""
        alive = ~lost if state.particle_weights is None else ~lost & ~state.particle_weights.log_weight.isneginf()
        others = alive.view(-1, max(1, self.particles)).any(dim=1, keepdim=True)
        return lost & others.expand(-1, max(1, self.particles)).flatten()

    def _masses(self, head: Head, hidden: Tensor, state: State, at: Positions, lifted: Tensor) -> Tensor:
        """[B, L, A] log-masses of sets: as predicted where something is masked, of the given token elsewhere."""
        log_m = self._given(state.ids)
        size = rows_at_once(hidden.device, len(self.kind))
        for part in torch.arange(len(hidden), device=hidden.device).split(size):
            row, place = at.rows[part], at.places[part]
            log_p = head(hidden[part]).float().log_softmax(-1)
            kinds = self.kinds(self._weights(log_p, state, row, lifted), self.reduce).double()
            kinds = kinds.masked_fill(~self._gate(state)[place], -torch.inf)
            log_m[row, place] = self.paths.masses(kinds, self.reduce)
        return log_m

    def _weights(self, log_p: Tensor, state: State, row: Tensor, lifted: Tensor) -> Tensor:
        """Log-probabilities [N, V] that tokens of sequences [N] are drawn with, untruncated where `lifted` [B]."""
        if self.greedy or self.rule == TokenSampler():
            return log_p
        log_w = self.rule.truncate(log_p, state.late(self.rule, row))
        if bool(lifted.any()):
            log_w = torch.where(lifted[row, None], self.untruncated.truncate(log_p), log_w)
        return log_w.log_softmax(-1)

    def _given(self, ids: Tensor) -> Tensor:
        """[B, L, A] the log-masses of sets where tokens [B, L] are known: 0 or minus infinity."""
        kind = self.kind[ids]
        inside = torch.nn.functional.pad(self.paths.contains, (0, 1))[:, kind].permute(1, 2, 0)
        gate = torch.nn.functional.pad(self._gate_of(ids.shape[1]), (0, 1))
        passes = gate.expand(len(ids), -1, -1).gather(2, kind.where(kind >= 0, gate.shape[1] - 1)[..., None])
        return torch.zeros_like(inside, dtype=torch.float64).masked_fill(~(inside & passes), -torch.inf)

    def _gate(self, state: State) -> Tensor:
        return self._gate_of(state.ids.shape[1])

    def _gate_of(self, length: int) -> Tensor:
        """[L, K] which kinds may stand at each position."""
        if length not in self._gates:
            self._gates[length] = torch.as_tensor(self.automaton.gates(length), device=self.kind.device)
        return self._gates[length]

    def _tokens(
        self, head: Head, hidden: Tensor, state: State, wanted: Positions, sets: Tensor, lifted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [N] out of the sets [N], and their confidences."""
        tokens, confidence = [], []
        for part in torch.arange(len(hidden), device=hidden.device).split(rows_at_once(hidden.device, len(self.kind))):
            row, place = wanted.rows[part], wanted.places[part]
            log_p = head(hidden[part]).float().log_softmax(-1)
            open_ = torch.nn.functional.pad(self.paths.contains[sets[part]] & self._gate(state)[place], (0, 1))
            log_w = self._weights(log_p, state, row, lifted).masked_fill(~open_[:, self.kind], -torch.inf)
            token = (
                log_w.argmax(-1) if self.greedy else sample_tokens(log_w, state.canvas.seeds[row], state.call, place)
            )
            tokens.append(token)
            confidence.append(log_p.gather(1, token[:, None])[:, 0].exp())
        return torch.cat(tokens), torch.cat(confidence)

    def _evidence(
        self, state: State, log_m: Tensor, log_z: Tensor, wanted: Positions, tokens: Tensor
    ) -> ParticleWeights:
        """The weight grows by the normaliser of this prediction over what the last one said of the same masks."""
        before = state.particle_weights or ParticleWeights(torch.zeros_like(log_z), torch.zeros_like(log_z))
        ids = state.ids.index_put(wanted, tokens)
        known = log_m.index_put(wanted, self._given(ids)[wanted])
        rest = self.paths.filter(known, self._read(state))[0, :, 0]
        return ParticleWeights(before.log_weight + log_z - before.log_potential, rest)


def _numbers(state: State, at: Positions) -> Tensor:
    """[B, L] which of the positions `at` each position is."""
    numbers = torch.zeros_like(state.ids)
    numbers[at] = torch.arange(len(at.rows), device=numbers.device)
    return numbers
