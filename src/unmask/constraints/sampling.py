"""Exact draws of a whole canvas from the factorised prediction, given that an automaton accepts it.

Each call reduces the prediction at every masked position to the probabilities of the automaton's token classes. A
backward filter follows, a path through the automaton is drawn, and at each target a token among those that the path
allows there. Together this is a draw from the prediction given that the canvas matches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from unmask.constraints.automaton import Automaton, Bools, Ints
from unmask.errors import UnmaskError
from unmask.random import Purpose, exponential
from unmask.samplers.base import Head, JointTokenSampler, ParticleWeights, Positions, Prediction, State, TokenDraw
from unmask.samplers.token_sampling import TokenSampler, rows_per_chunk, sample_tokens

NOISE_PER_CHUNK = 1 << 20
GROUP_WIDTH = 16
MANY_ARCS = 4096
"""From this many arcs it is faster to take logarithms per state than per arc."""
MAX_LOG_RANGE = 600.0
"""Nats between the largest and the smallest factor for which float64 can hold the products."""


def log_total(x: Tensor, greedy: bool) -> Tensor:
    """The log of the sum of probabilities over the last dimension; if `greedy`, of the largest one."""
    return x.amax(-1) if greedy else x.logsumexp(-1)


class GroupReduce:
    """Reduces the last dimension of a tensor by groups, which may overlap and differ in size.

    Members are reduced 16 at a time until one is left, so the result of a group depends on its members alone.
    """

    def __init__(self, group: Ints, member: Ints, groups: int, size: int, device: torch.device) -> None:
        """`member` [M] are indices below `size`, sorted by their `group` [M]."""
        self._levels: list[Tensor] = []
        while not self._levels or len(member) > groups:
            counts = np.bincount(group, minlength=groups)
            parts = np.maximum(1, -(-counts // GROUP_WIDTH))
            begin, rank = np.cumsum(parts) - parts, np.arange(len(group)) - (np.cumsum(counts) - counts)[group]
            index = np.full(int(parts.sum()) * GROUP_WIDTH, size)
            index[begin[group] * GROUP_WIDTH + rank] = member
            self._levels.append(torch.as_tensor(index.reshape(-1, GROUP_WIDTH), device=device))
            size = len(index) // GROUP_WIDTH
            group, member = np.repeat(np.arange(groups), parts), np.arange(size)

    def __call__(self, x: Tensor, greedy: bool) -> Tensor:
        """[..., G] `log_total` of x [..., size]; -inf for a group without members."""
        for index in self._levels:
            x = log_total(torch.nn.functional.pad(x, (0, 1), value=-torch.inf)[..., index], greedy)
        return x


class AutomatonPaths:
    """The arcs of an automaton. All transitions from one state to another form one arc, whose label is a set of token
    classes. The arcs out of state s have the labels `_labels[s]` [W] and lead to the states `_ends[s]` [W]."""

    def __init__(self, automaton: Automaton, device: torch.device) -> None:
        contains, labels, ends = _arcs(automaton)
        self.labels = len(contains)
        self.states = automaton.states
        self.contains = torch.as_tensor(contains, device=device)
        """[A, C] the token classes in each label."""
        label, classes = np.nonzero(contains)
        self.label_mass = GroupReduce(label, classes, self.labels, automaton.classes, device)
        self._labels, self._ends = torch.as_tensor(labels, device=device), torch.as_tensor(ends, device=device)
        self._widths = _by_width(self._labels, self._ends, self.labels)
        self._independent = self.labels == self.states == 1
        self._many_arcs = bool((self._labels < self.labels).sum() > MANY_ARCS)
        self._accepting = torch.as_tensor(np.where(automaton.accepting, 0.0, -np.inf), device=device)

    def log_accept(self, log_m_BLA: Tensor, read_BL: Tensor, greedy: bool = False) -> Tensor:
        """[L + 1, B, S] the log-probability of acceptance from each state before each position.

        `log_m_BLA` are the log-probabilities of the labels. Positions outside `read_BL` are skipped.
        """
        batch, length, _ = log_m_BLA.shape
        if self._independent:
            each = log_m_BLA[..., 0].masked_fill(~read_BL, 0.0)
            return torch.nn.functional.pad(each.flip(1).cumsum(dim=1).flip(1), (0, 1)).T[..., None]
        log_accept = log_m_BLA.new_empty(length + 1, batch, self.states)
        log_accept[length] = self._accepting
        padded = torch.nn.functional.pad(log_m_BLA, (0, 1), value=-torch.inf)
        for position in reversed(range(length)):
            after = log_accept[position + 1]
            before = self._step_back(padded[:, position], after, greedy)
            log_accept[position] = torch.where(read_BL[:, position, None], before, after)
        return log_accept

    def _step_back(self, log_m: Tensor, after: Tensor, greedy: bool) -> Tensor:
        """[B, S] the log-probability of acceptance before a position, given the one `after` [B, S] it."""
        out = torch.empty_like(after)
        in_logs = greedy or not self._many_arcs
        if not in_logs and (_log_range(log_m) + _log_range(after)).amax() < MAX_LOG_RANGE:
            top_m, top_after = _finite_max(log_m), _finite_max(after)
            mass, accept = (log_m - top_m).exp(), (after - top_after).exp()
            for states, labels, ends in self._widths:
                out[:, states] = (mass[:, labels] * accept[:, ends]).sum(dim=-1)
            return out.log() + top_m + top_after
        for states, labels, ends in self._widths:
            out[:, states] = log_total(log_m[:, labels] + after[:, ends], greedy)
        return out

    def sample_labels(
        self, log_accept: Tensor, log_m_BLA: Tensor, read_BL: Tensor, seeds_B: Tensor, step: int, greedy: bool
    ) -> Tensor:
        """[B, L] the labels along a path that is drawn given acceptance, or along the most likely path."""
        if self._independent:
            return torch.zeros_like(read_BL, dtype=torch.int64)
        padded = torch.nn.functional.pad(log_m_BLA, (0, 1), value=-torch.inf)
        state = torch.zeros_like(seeds_B)
        chosen = []
        for position, noise in enumerate(self._arc_noise(seeds_B, step, log_m_BLA.shape[1], greedy)):
            labels, ends = self._labels[state], self._ends[state]
            log_w = padded[:, position].gather(1, labels) + log_accept[position + 1].gather(1, ends) + noise
            arc = log_w.argmax(dim=1, keepdim=True)
            chosen.append(labels.gather(1, arc)[:, 0])
            state = torch.where(read_BL[:, position], ends.gather(1, arc)[:, 0], state)
        return torch.stack(chosen, dim=1)

    def _arc_noise(self, seeds_B: Tensor, step: int, length: int, greedy: bool) -> Iterator[Tensor]:
        """For each position, noise [B, W] that makes the argmax of log-weights + noise an exact draw."""
        width = self._labels.shape[1]
        arc = torch.arange(width, device=seeds_B.device)
        size = max(1, NOISE_PER_CHUNK // (len(seeds_B) * width))
        for part in torch.arange(length, device=seeds_B.device).split(size):
            if greedy:
                yield from torch.zeros(len(part), 1, 1, device=seeds_B.device)
            else:
                seeds = seeds_B[:, None]
                yield from -exponential(seeds, Purpose.PATH, step, part[:, None, None], arc).double().log()


def _finite_max(x: Tensor) -> Tensor:
    """[B, 1] the largest entry of each row, 0 for a row of -inf."""
    top = x.amax(dim=1, keepdim=True)
    return top.masked_fill(top.isneginf(), 0.0)


def _log_range(x: Tensor) -> Tensor:
    """[B, 1] the difference between the largest and the smallest finite entry of each row."""
    top = _finite_max(x)
    return top - torch.where(x.isneginf(), top, x).amin(dim=1, keepdim=True)


def _by_width(labels: Tensor, ends: Tensor, no_label: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """States grouped by their number of arcs, up to 4, 16, 64, ...: the states, their labels and their ends."""
    width = (labels < no_label).sum(dim=1).clamp_min(1)
    power = (width.double().log2() / 2).ceil().long()
    groups = []
    for one in power.unique().tolist():
        (states,) = (power == one).nonzero(as_tuple=True)
        size = int(width[states].max())
        groups.append((states, labels[states, :size], ends[states, :size]))
    return groups


def _arcs(automaton: Automaton) -> tuple[Bools, Ints, Ints]:
    """The classes in each label [A, C], and the labels and ends [S, W] of the arcs out of each state, padded."""
    state, symbol = np.nonzero(automaton.transitions >= 0)
    end = automaton.transitions[state, symbol]
    arcs, arc = np.unique(state * automaton.states + end, return_inverse=True)
    arc = arc.reshape(-1)
    names = np.random.default_rng(0).integers(1 << 62, size=int(symbol.max(initial=-1)) + 1)
    sums = np.zeros(len(arcs), dtype=np.int64)
    np.add.at(sums, arc, names[symbol])  # random sums identify sets of classes
    label = np.unique(sums, return_inverse=True)[1].reshape(-1)
    contains = np.zeros((int(label.max(initial=-1)) + 1, automaton.classes), dtype=bool)
    contains[label[arc], symbol] = True
    begin, finish = arcs // automaton.states, arcs % automaton.states
    counts = np.bincount(begin, minlength=automaton.states)
    slot = np.arange(len(arcs)) - (np.cumsum(counts) - counts)[begin]
    labels = np.full((automaton.states, max(1, counts.max())), len(contains))
    ends = np.zeros_like(labels)
    labels[begin, slot], ends[begin, slot] = label, finish
    return contains, labels, ends


class ConstrainedTokenSampler(JointTokenSampler):
    """Draws tokens under a constraint.

    Every `particles` consecutive rows belong to one sequence and are weighted, which costs a second filter per call; 0
    for no particles. If truncation or a greedy choice leaves no path for a sequence, it is lifted for that sequence and
    call; a particle without a path gets weight zero if another particle has one. `eos` is the token that fills a row
    after its text, if any. The automaton does not read given `end` tokens at the end of a canvas.
    """

    def __init__(
        self,
        token_sampler: TokenSampler,
        automaton: Automaton,
        device: torch.device,
        particles: int = 0,
        eos: int | None = None,
        end: int | None = None,
    ) -> None:
        self.token_sampler = token_sampler
        self.untruncated = TokenSampler(temperature=token_sampler.temperature)
        self.greedy = token_sampler.temperature == 0
        self.automaton = automaton
        self.particles = particles
        self.eos = eos
        self.end = end
        self.paths = AutomatonPaths(automaton, device)
        token = automaton.token_class.argsort(kind="stable")
        token = token[automaton.token_class[token] >= 0]
        self.class_mass = GroupReduce(
            automaton.token_class[token], token, automaton.classes, len(automaton.token_class), device
        )
        self.token_class = torch.as_tensor(automaton.token_class, device=device)
        self._allowed: dict[int, Tensor] = {}

    def sample_jointly(self, head: Head, prediction: Prediction, state: State, targets: Positions) -> TokenDraw:
        read, seeds = self._read_positions(state), state.canvas.seeds
        lifted = torch.zeros_like(seeds, dtype=torch.bool)
        log_m = self._label_masses(head, prediction, state, lifted)
        log_accept = self.paths.log_accept(log_m, read, self.greedy)
        lost = log_accept[0, :, 0].isneginf()
        dead = self._dead_particles(state, lost)
        if bool(lost.any()):
            lifted = lost
            log_m = self._label_masses(head, prediction, state, lifted)
            log_accept = self.paths.log_accept(log_m, read, self.greedy)
        if bool(log_accept[0, :, 0].isneginf().any()):
            raise UnmaskError("The model gives all canvases that satisfy the constraint probability 0; relax it.")
        labels = self.paths.sample_labels(log_accept, log_m, read, seeds, state.call, self.greedy)[targets]
        tokens, confidence = self._sample_tokens(head, prediction, state, targets, labels, lifted)
        if not self.particles:
            return TokenDraw(tokens, confidence)
        log_z = log_accept[0, :, 0].masked_fill(dead, -torch.inf)
        return TokenDraw(tokens, confidence, self._weigh(state, log_m, log_z, targets, tokens))

    def _read_positions(self, state: State) -> Tensor:
        """[B, L] the positions that the automaton reads, which exclude a given end."""
        real = state.canvas.attention_mask
        if self.end is None:
            return real
        return (real & (state.canvas.ids != self.end)).flip(1).cumsum(dim=1).flip(1) > 0

    def _dead_particles(self, state: State, lost: Tensor) -> Tensor:
        """[B] the particles that have `lost` [B] every path, if another particle of positive weight has one."""
        weights, size = state.particle_weights, max(1, self.particles)
        alive = ~lost if weights is None else ~lost & ~weights.log_weight.isneginf()
        return lost & alive.view(-1, size).any(dim=1, keepdim=True).expand(-1, size).flatten()

    def _label_masses(self, head: Head, prediction: Prediction, state: State, lifted: Tensor) -> Tensor:
        """[B, L, A] log-probabilities of the labels: predicted ones at masks, 0 or -inf at known tokens."""
        log_m, allowed = self._known_labels(state.ids), self._allowed_classes(state.ids.shape[1])
        for row, column, log_p in self._predictions(head, prediction.hidden, prediction.at):
            mass = self.class_mass(self._log_weights(log_p, state, row, lifted), self.greedy).double()
            mass = mass.masked_fill(~allowed[column], -torch.inf)
            log_m[row, column] = self.paths.label_mass(mass, self.greedy)
        return log_m

    def _predictions(self, head: Head, hidden: Tensor, at: Positions) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, columns and log-probabilities [n, V] of the positions, in chunks."""
        for part in torch.arange(len(hidden), device=hidden.device).split(self._chunk(hidden)):
            yield at.rows[part], at.columns[part], head(hidden[part]).float().log_softmax(-1)

    def _chunk(self, like: Tensor) -> int:
        return rows_per_chunk(like.device, len(self.token_class))

    def _log_weights(self, log_p: Tensor, state: State, row: Tensor, lifted: Tensor) -> Tensor:
        """[N, V] log-probabilities of tokens after truncation, which does not apply to `lifted` [B] sequences."""
        if self.greedy or self.token_sampler == TokenSampler():
            return log_p
        log_w = self.token_sampler.truncate(log_p, state.in_greedy_tail(self.token_sampler, row))
        if bool(lifted.any()):
            log_w = torch.where(lifted[row, None], self.untruncated.truncate(log_p), log_w)
        return log_w.log_softmax(-1)

    def _known_labels(self, ids: Tensor) -> Tensor:
        """[B, L, A] log-masses of the labels for known tokens [B, L]: 0 or -inf."""
        token_class = self.token_class[ids]
        inside = torch.nn.functional.pad(self.paths.contains, (0, 1))[:, token_class].permute(1, 2, 0)
        allowed = torch.nn.functional.pad(self._allowed_classes(ids.shape[1]), (0, 1))
        index = token_class.where(token_class >= 0, allowed.shape[1] - 1)[..., None]
        passes = allowed.expand(len(ids), -1, -1).gather(2, index)
        return torch.zeros_like(inside, dtype=torch.float64).masked_fill(~(inside & passes), -torch.inf)

    def _allowed_classes(self, length: int) -> Tensor:
        """[L, C] the token classes allowed at each position."""
        if length not in self._allowed:
            self._allowed[length] = torch.as_tensor(self.automaton.allowed_at(length), device=self.token_class.device)
        return self._allowed[length]

    def _sample_tokens(
        self, head: Head, prediction: Prediction, state: State, targets: Positions, labels: Tensor, lifted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [N] from the labels [N], and their confidences."""
        allowed, tokens, confidence = self._allowed_classes(state.ids.shape[1]), [], []
        chunks = self._predictions(head, prediction.hidden_at(targets, state.ids.shape), targets)
        for (row, column, log_p), label in zip(chunks, labels.split(self._chunk(labels)), strict=True):
            possible = torch.nn.functional.pad(self.paths.contains[label] & allowed[column], (0, 1))
            log_w = self._log_weights(log_p, state, row, lifted)
            log_w = log_w.masked_fill(~possible[:, self.token_class], -torch.inf)
            if self.greedy:
                token = log_w.argmax(-1)
            else:
                token = sample_tokens(log_w, state.canvas.seeds[row], state.call, column)
            tokens.append(token)
            confidence.append(log_p.gather(1, token[:, None])[:, 0].exp())
        return torch.cat(tokens), torch.cat(confidence)

    def _weigh(self, state: State, log_m: Tensor, log_z: Tensor, targets: Positions, tokens: Tensor) -> ParticleWeights:
        """Multiply the weights by the probability of a match before this call, over that after the last call."""
        zero = torch.zeros_like(log_z)
        before = state.particle_weights or ParticleWeights(zero, zero)
        known = self._known_labels(state.ids.index_put(targets, tokens))
        log_m = log_m.index_put(targets, known[targets])
        rest = self.paths.log_accept(log_m, self._read_positions(state))[0, :, 0]
        return ParticleWeights(before.log_weight + log_z - before.log_potential, rest)
