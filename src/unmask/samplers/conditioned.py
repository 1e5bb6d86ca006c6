"""The exact draw of a whole canvas from the factorised prediction, given that an automaton accepts it.

Each call the head sees every masked position, some rows at a time, and keeps of its prediction the masses of the kinds
of tokens that the automaton tells apart. A path through the automaton is drawn by these, and then, where a token is to
be written, one among those that the path allows there. Together they are a draw from the prediction, given the match.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.constraints import Automaton
from unmask.errors import UnmaskError
from unmask.samplers.base import Drawn, Evidence, JointRule, Positions, State
from unmask.samplers.draws import TokenRule, draw, rows_at_once
from unmask.samplers.paths import Groups, Paths, largest, sum_of_logs

Head = Callable[[Tensor], Tensor]


class Conditioned(JointRule):
    """A token rule under a constraint. So many rows at a time are `particles` of one sequence and are weighed, at the
    price of a second filter a call; 0 for none.

    Where truncation leaves no path to a sequence, it is lifted for that sequence and that call; a particle without one
    among others that have one weighs nothing, as the truncated model gives it no chance. What a hybrid rule takes for
    sure is such a truncation, to one token. `eos` is what fills a row behind its text, if anything does. The `end` that
    a row is given with is shown to the network, and none of the constraint's.
    """

    def __init__(
        self,
        rule: TokenRule,
        automaton: Automaton,
        device: torch.device,
        particles: int = 0,
        eos: int | None = None,
        end: int | None = None,
    ) -> None:
        self.rule = rule
        self.eos = eos
        self.end = end
        self.untruncated = TokenRule(temperature=rule.temperature)
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

    def choose_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
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
        evidence = self._evidence(state, log_m, log_z, wanted, tokens) if self.particles else None
        return Drawn(tokens, confidence, evidence)

    def _read(self, state: State) -> Tensor:
        """[B, L] the positions that the automaton reads: those of the text."""
        real = state.canvas.attention_mask
        if self.end is None:
            return real
        return (real & (state.canvas.ids != self.end)).flip(1).cumsum(dim=1).flip(1) > 0

    def _dead(self, state: State, lost: Tensor) -> Tensor:
        """[B] the walks that have lost every truncated path, where others that weigh something have one left."""
        alive = ~lost if state.evidence is None else ~lost & ~state.evidence.log_weight.isneginf()
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
        if self.greedy or self.rule == TokenRule():
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
            token = log_w.argmax(-1) if self.greedy else draw(log_w, state.canvas.seeds[row], state.call, place)
            tokens.append(token)
            confidence.append(log_p.gather(1, token[:, None])[:, 0].exp())
        return torch.cat(tokens), torch.cat(confidence)

    def _evidence(self, state: State, log_m: Tensor, log_z: Tensor, wanted: Positions, tokens: Tensor) -> Evidence:
        """The weight grows by the normaliser of this prediction over what the last one said of the same masks."""
        before = state.evidence or Evidence(torch.zeros_like(log_z), torch.zeros_like(log_z))
        ids = state.ids.index_put(wanted, tokens)
        known = log_m.index_put(wanted, self._given(ids)[wanted])
        rest = self.paths.filter(known, self._read(state))[0, :, 0]
        return Evidence(before.log_weight + log_z - before.log_rest, rest)


def _numbers(state: State, at: Positions) -> Tensor:
    """[B, L] which of the positions `at` each position is."""
    numbers = torch.zeros_like(state.ids)
    numbers[at] = torch.arange(len(at.rows), device=numbers.device)
    return numbers
