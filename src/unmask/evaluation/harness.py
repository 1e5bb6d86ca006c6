"""A checkpoint as a model of lm-evaluation-harness (`lm_eval`).

Log-likelihoods are the conditional bound of a masked model, or the likelihood of an autoregressive one. The choices of
a question see the same random numbers, so the noise of their difference is small.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import TemplateLM

from unmask.data.rows import GivenRows, Tokens
from unmask.likelihood import SCORE_PRECISION, Progress, evaluate

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from unmask.pipeline import MaskedDiffusionLM

MAX_NEW_TOKENS = 128
"""Tokens to generate where a task does not say."""

Pair = tuple[list[int], list[int]]
"""The tokens of a context and of its continuation."""


class HarnessLM(TemplateLM):
    """The model interface of lm_eval for a checkpoint.

    `precision` is the Monte-Carlo error of the bounds in bits per token, `steps` the network calls per generated text.
    `truncated` counts the items whose context, or whose continuation, did not fit into a row.
    """

    def __init__(
        self,
        lm: MaskedDiffusionLM,
        *,
        precision: float = SCORE_PRECISION,
        steps: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.precision = precision
        self.steps = None if lm.causal else steps
        self.seed = seed
        self.batch_size = batch_size
        self.progress = progress
        self.truncated: Counter[str] = Counter()

    @property
    def eot_token_id(self) -> int:
        return self.lm.text_processor.eos_token_id or 0

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        return self.lm.text_processor.encode([string])[0]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation, whether greedy generation writes it) of each request."""
        encoded = []
        for request in requests:
            context, continuation = request.args
            pair = self._encode_pair(context, continuation) if context else ([], self.tok_encode(continuation))
            encoded.append((request.args, *pair))
        return self._loglikelihood_tokens(encoded)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """Greedy generation is tried where a context has one continuation; the choices of a question do not need it."""
        pairs = [self._fit(context, continuation) for _, context, continuation in requests]
        contexts = [strings[0] for strings, *_ in requests]
        nats = self._conditional_nats(pairs, contexts)
        count = Counter(contexts)
        single = [number for number, context in enumerate(contexts) if count[context] == 1]
        greedy = dict(zip(single, self._writes_greedily([pairs[number] for number in single]), strict=True))
        return [(-value, greedy.get(number, False)) for number, value in enumerate(nats)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text in windows of a row, each after one token of the last; every token once.

        The last window has as many tokens before it as fit.
        """
        pairs: list[Pair] = []
        owner: list[int] = []
        for number, request in enumerate(requests):
            windows = rolling_windows(self.tok_encode(request.args[0]), self.lm.row_length)
            pairs += windows
            owner += [number] * len(windows)
        totals = np.zeros(len(requests))
        if pairs:
            np.add.at(totals, owner, self._conditional_nats(pairs, list(map(str, range(len(pairs))))))
        return (-totals).tolist()

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts after their contexts, up to the first stop string."""
        groups: dict[tuple[int, float], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            options = request.args[1]
            temperature = float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0
            count = int(options.get("max_gen_toks", options.get("max_tokens", MAX_NEW_TOKENS)))
            groups[min(count, self.lm.row_length - 1), temperature].append(number)
        texts = [""] * len(requests)
        mask = self.lm.text_processor.mask_token_id
        for (count, temperature), numbers in groups.items():
            contexts = [self._fit(self.tok_encode(requests[number].args[0]), [mask] * count)[0] for number in numbers]
            rows = [[*context, *[mask] * count] for context in contexts]
            generations = self.lm.fill_rows(
                rows, temperature=temperature, seed=self.seed, steps=self.steps, batch_size=self.batch_size
            )
            for number, context, generation in zip(numbers, contexts, generations, strict=True):
                until = requests[number].args[1].get("until") or []
                text = self.lm.decode(generation.ids[len(context) :])
                texts[number] = cut_at(text, [until] if isinstance(until, str) else until)
        return texts

    def _fit(self, context: list[int], continuation: list[int]) -> Pair:
        """Cut a pair to the length of a row: the context from the left, a longer continuation from the right."""
        length = self.lm.row_length
        if len(continuation) > length:
            self.truncated["continuations"] += 1
            return [], continuation[:length]
        room = length - len(continuation)
        if len(context) > room:
            self.truncated["contexts"] += 1
            context = context[len(context) - room :]
        return context, continuation

    def _conditional_nats(self, pairs: Sequence[Pair], contexts: Sequence[str]) -> list[float]:
        """-log p(continuation | context) of each pair, or its bound.

        The n-th continuations of all contexts are one table. A context is the same row of every table, and random
        numbers depend on the row, so its continuations see the same ones.
        """
        place = {context: row for row, context in enumerate(dict.fromkeys(contexts))}
        seen: Counter[str] = Counter()
        tables: dict[int, dict[int, int]] = defaultdict(dict)
        for number, context in enumerate(contexts):
            tables[seen[context]][place[context]] = number
            seen[context] += 1
        nats = [0.0] * len(pairs)
        for table in tables.values():
            # A context without an n-th continuation keeps its row with its first one, which is not read.
            numbers = [table.get(row, tables[0][row]) for row in range(max(table) + 1)]
            for row, value in enumerate(self._table_nats([pairs[number] for number in numbers])):
                if row in table:
                    nats[table[row]] = value
        return nats

    def _table_nats(self, pairs: Sequence[Pair]) -> list[float]:
        lm = self.lm
        tokens = Tokens.of([[*context, *continuation] for context, continuation in pairs])
        given = np.array([len(context) for context, _ in pairs], dtype=np.int64)
        rows = GivenRows(tokens, given, max(map(len, map(tokens.document, range(len(pairs))))), None, False)
        denoiser = lm.text_processor.as_trained(lm.prepare_denoiser(rows.length * len(rows)))
        result = evaluate(
            denoiser,
            lm.config.objective,
            lm.config.schedule,
            rows,
            seed=self.seed,
            precision=self.precision,
            batch_size=self.batch_size,
            each=True,
            progress=self.progress,
        )
        return [bound.nats for bound in result.headline]

    def _writes_greedily(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether greedy generation from left to right after each context writes the continuation."""
        if not pairs:
            return []
        mask = self.lm.text_processor.mask_token_id
        rows = [[*context, *[mask] * len(continuation)] for context, continuation in pairs]
        order = None if self.lm.causal else "left_to_right"
        written = self.lm.fill_rows(rows, temperature=0.0, order=order, batch_size=self.batch_size)
        return [
            one.ids[len(context) : len(context) + len(continuation)] == continuation
            for one, (context, continuation) in zip(written, pairs, strict=True)
        ]


def rolling_windows(ids: list[int], length: int) -> list[Pair]:
    """Windows of at most `length` tokens that predict every token once; the last one has as much context as fits."""
    windows: list[Pair] = []
    done = 0
    while done < len(ids):
        end = min(len(ids), done + (length if done == 0 else length - 1))
        start = 0 if done == 0 else done - 1 if end < len(ids) else max(0, end - length)
        windows.append((ids[start:done], ids[done:end]))
        done = end
    return windows


def cut_at(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of some strings."""
    ends = [position for stop in stops if stop and (position := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))]
