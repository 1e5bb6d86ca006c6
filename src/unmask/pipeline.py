"""Load a checkpoint and generate, fill, edit, stream and score text with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from unmask.checkpoint import (
    GENERATION_FILE,
    CheckpointConfig,
    is_checkpoint,
    load_checkpoint,
    model_card,
    read_generation_config,
    upload,
    write_checkpoint,
)
from unmask.constraints.members import Constraints
from unmask.constraints.particles import repeat_canvas
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.generation_config import (
    SAMPLER_FIELDS,
    GenerationConfig,
    SamplerSpec,
    SamplingOptions,
    check_count,
    choose_sampler,
    configure_sampler,
    greedy_temperature,
)
from unmask.infilling import (
    DEFAULT_STRENGTH,
    Choice,
    TemplateLayout,
    answer_nats,
    answer_rows,
    compare_answers,
    mask_around,
    mask_spans,
    mask_unlikely,
    most_likely_tokens,
    split_at_blank,
)
from unmask.io import atomic_folder, check_new_folder
from unmask.likelihood import Bound, Evaluation, Precision, Progress, count_draws, evaluate
from unmask.models.dit import missing_planner_error
from unmask.models.inference import Dtype, InferenceEngine, cast_trunk_to_bf16, device_of, select_device, select_dtype
from unmask.random import check_seeds, is_integer
from unmask.registry import build
from unmask.samplers.base import Sampler, State
from unmask.samplers.token_sampling import TokenSampler
from unmask.text_processor import (
    BLANK,
    Frame,
    Generation,
    PieceReader,
    Stream,
    TextProcessor,
    check_streamer,
    check_text,
    check_texts,
    feed_streamer,
    is_open,
)

StateOrFrame = TypeVar("StateOrFrame", State, Frame)


def load(
    path: str | Path | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "auto",
    revision: str | None = None,
) -> MaskedDiffusionLM:
    """Open a checkpoint: a folder written by `unmask train` or `unmask convert`, or a shipped or hub model by its name.

    Without a path this is the shipped model `stories`. Models on the Hugging Face hub are named "org/name"; `revision`
    is a branch, tag or commit. `device` defaults to the GPU if there is one. `dtype` is the precision of the
    blocks; the default is bf16 on GPUs that support it, and float32 elsewhere. Converted diffusion language models
    (LLaDA, Dream) keep the precision of their files unless it is "float32".
    """
    selected = select_device(device)
    precision = select_dtype(dtype, selected)
    checkpoint = load_checkpoint(path, revision, as_stored=dtype != "float32")
    network = checkpoint.model.to(selected)
    if precision == torch.bfloat16:
        cast_trunk_to_bf16(network)
    causal = checkpoint.config.objective.causal
    use_cuda_graphs = selected.type == "cuda" and not causal and getattr(network, "supports_cuda_graphs", True)
    engine = InferenceEngine(network) if use_cuda_graphs else None
    lm = build_pipeline(network, checkpoint.tokenizer, checkpoint.config, checkpoint.path, engine)
    lm.generation_config = read_generation_config(checkpoint.path)
    if lm.generation_config:
        try:
            lm.resolve({}, lm.sample)
        except UnmaskError as error:
            file, reason = checkpoint.path / GENERATION_FILE, str(error).rstrip(".")
            raise UnmaskError(f"'{file}' cannot be used ({reason}); correct or delete it.") from error
    return lm


def build_pipeline(
    denoiser: Any,
    tokenizer: Any,
    config: CheckpointConfig,
    path: Path | None = None,
    engine: InferenceEngine | None = None,
) -> MaskedDiffusionLM:
    """Wrap a network in memory; the objective of its config says whether it is masked or autoregressive."""
    pipeline = AutoregressiveLM if config.objective.causal else MaskedDiffusionLM
    return pipeline(denoiser, tokenizer, config, path, engine)


class MaskedDiffusionLM:
    """A masked diffusion language model: a denoiser, its tokenizer and the config of its checkpoint."""

    causal: ClassVar[bool] = False

    def __init__(
        self,
        denoiser: Any,
        tokenizer: Any,
        config: CheckpointConfig,
        path: Path | None = None,
        engine: InferenceEngine | None = None,
    ) -> None:
        self.denoiser = denoiser
        self.tokenizer = tokenizer
        self.config = config
        self.path = path
        self.text_processor = TextProcessor(tokenizer, denoiser.config, config)
        self.row_length = self.text_processor.row_length
        self.generation_config: dict[str, Any] = {}
        """Default options of `generate`, `fill`, `edit` and `stream`, from generation_config.json."""
        self._engine = engine

    def __repr__(self) -> str:
        name = "in memory" if self.path is None else self.path.name
        size = sum(parameter.numel() for parameter in self.denoiser.parameters())
        config = self.config
        return (
            f"{type(self).__name__}({name}: {size:,} parameters, objective {config.objective.name}, schedule "
            f"{config.schedule.name}, length {self.row_length}, on {self.device})"
        )

    @property
    def device(self) -> torch.device:
        return device_of(self.denoiser)

    def prepare_denoiser(self, tokens: int) -> Any:
        """The denoiser, compiled or captured as a graph if that pays off for `tokens` tokens in all calls together."""
        return self.denoiser if self._engine is None else self._engine.prepare(tokens)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas, up to the first EOS if the length policy ends texts with it."""
        return self.text_processor.decode(ids)

    # -- save

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the checkpoint atomically, with a model card, to a new folder or over one written by this method."""
        if not isinstance(folder, str | PathLike):
            raise UnmaskError(f"folder must be a path, got {folder!r}.")
        folder = Path(folder)
        if not is_checkpoint(folder) or any(path.is_dir() for path in folder.iterdir()):
            check_new_folder(folder, "name a new folder")
        with atomic_folder(folder) as temporary:
            self._write(temporary, str(folder))

    def push_to_hub(self, name: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the checkpoint with a model card to the repository "org/name" of the hub; return its URL."""
        with tempfile.TemporaryDirectory() as temporary:
            self._write(Path(temporary), name)
            return upload(Path(temporary), name, private, token)

    def _write(self, folder: Path, name: str) -> None:
        write_checkpoint(folder, self.denoiser, self.tokenizer, self.config, generation_config=self.generation_config)
        card = model_card(name, self.denoiser, self.config)
        if self.path is not None and (self.path / "README.md").is_file():
            card = (self.path / "README.md").read_text(encoding="utf-8")
        (folder / "README.md").write_text(card, encoding="utf-8")

    # -- generate

    def generate(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        window: int | None = None,
        stride: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        rule: TokenSampler | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: SamplerSpec | None = None,
        exact: bool = False,
        eos_rule: bool = True,
        guidance: float = 0.0,
        best_of: int = 1,
        score: Callable[[str], float] | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
    ) -> list[Any]:
        """Generate `n` texts (per prompt, if `prompts` is given) of `length` tokens, prompt and suffix included.

        `steps=T` makes at most T network calls. Token and sampler options that are None have the defaults of the
        checkpoint (`lm.generation_config`). `exact=True` ignores those: temperature 1, no truncation and one token per
        call, unless they are given. Models with learned padding also follow the rule that only EOS follows EOS; with
        `eos_rule=False` tokens are drawn exactly as the network predicts them. Sequence i has the seed `seed + i` and
        does not depend on the others. Texts longer than the model, or than `window` tokens, are generated in windows,
        each `stride` tokens after the last.

        Every text satisfies the `constraint` (one of `unmask.constraints`, or several); with many `particles` the texts
        are distributed as the model's, given the constraint. `guidance=w` uses (1 + w) times the logits with the prompt
        minus w times those without. `score`, a function of a text, selects the best of `best_of` texts, or weights
        `particles`, so that the distribution of the texts approaches p exp(score).

        `order` names an order of unmasking (`unmask.generation_config.Order`), `sampler` a sampler, such as
        `{"name": "remdm", "strategy": "cap"}`. `rule`, a `TokenSampler`, replaces `temperature` to `greedy_above`.
        `return_trajectory` returns `Generation`s with a `trajectory`. `streamer` is a streamer of `transformers`, for
        one text.
        """
        options = GenerationConfig.select(locals())  # the first statement: `locals()` are the arguments
        canvas: dict[str, Any] = {"prompt": prompt, "prompts": prompts, "suffix": suffix, "length": length}
        generations = self.sample(n, **canvas, return_trajectory=return_trajectory, streamer=streamer, **options)
        return generations if return_trajectory else [one.text for one in generations]

    def sample(
        self,
        n: int = 1,
        *,
        prompt: str = "",
        prompts: Sequence[str] | None = None,
        suffix: str = "",
        length: int | None = None,
        return_trajectory: bool = False,
        streamer: Any = None,
        progress: Progress | None = None,
        on_batch: Callable[[int], None] | None = None,
        **options: Any,
    ) -> list[Generation]:
        """Like `generate`, with the ids, order, confidences and number of network calls of each sequence.

        `options` are fields of `GenerationConfig`. `progress` is called after every network call with the fraction of
        texts it completed, `on_batch` after every batch with its size.
        """
        config, sampler = self.resolve(options, self.sample, whole_texts=streamer is None)
        processor = self.text_processor
        check_count("n", n)
        every_prompt = _check_prompts(prompt, prompts)
        check_seeds(config.seed, n * len(every_prompt))
        if streamer is not None:
            check_streamer(streamer, n * len(every_prompt) * config.best_of)
        rows, length = self._prompt_rows(every_prompt, suffix, length, config, sampler)
        repeated = [row for row in rows for _ in range(n)]
        if streamer is None:
            return self._generate(repeated, sampler, config, length, progress, on_batch, return_trajectory)
        states = feed_streamer(self._run(repeated, sampler, config), processor, streamer, sampler.rewrites)
        return processor.finish(states, length, return_trajectory)

    def stream(
        self,
        prompt: str = "",
        *,
        suffix: str = "",
        length: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        order: str | None = None,
        sampler: SamplerSpec | None = None,
        **options: Any,
    ) -> Stream:
        """Generate one text and yield every intermediate canvas, from all masks to the text.

        `options` are fields of `GenerationConfig` except `best_of`. With several `particles` only the last canvas is
        yielded, since the particle is selected at the end.
        """
        options |= {"steps": steps, "seed": seed, "order": order, "sampler": sampler}
        config, chosen = self.resolve(options, self.stream)
        if config.best_of != 1:
            raise UnmaskError(f"A stream shows one text; leave out best_of={config.best_of}.")
        rows, length = self._prompt_rows([prompt], suffix, length, config, chosen)
        processor = self.text_processor
        reader = PieceReader(processor.tokenizer, processor.mask_token_id)
        return Stream(processor.frame(state, reader, length) for state in self._run(rows, chosen, config))

    # -- chat

    def chat(self, messages: Any, *, max_new_tokens: int = 128, **options: Any) -> str:
        """The answer to a message, or to a conversation: a list of {"role": ..., "content": ...}, as in transformers.

        The checkpoint needs a chat template. The answer is written into `max_new_tokens` masks and ends at its first
        special token. `options` are those of `generate`: `steps`, `seed`, `sampler`, `temperature` and so on.
        """
        return self.chat_details(messages, max_new_tokens=max_new_tokens, **options).text

    def chat_details(
        self, messages: Any, *, max_new_tokens: int = 128, progress: Progress | None = None, **options: Any
    ) -> Generation:
        """Like `chat`, with the ids of the conversation and the answer, and the order and confidence of every token."""
        config, sampler = self.resolve(options, self.chat_details)
        check_count("max_new_tokens", max_new_tokens)
        prompt = self.text_processor.chat_prompt(messages)
        length = len(prompt) + max_new_tokens
        if length > self.text_processor.max_length:
            raise UnmaskError(
                f"The conversation has {len(prompt)} tokens and this model reads {self.text_processor.max_length}; "
                f"shorten it, or lower max_new_tokens, {max_new_tokens}."
            )
        config.check_sampler(sampler, length, self.text_processor.max_length)
        row = self.text_processor.prompt_row(prompt, [], length)
        written = self._generate([row], sampler, config, progress=progress)[0]
        return replace(written, text=self.text_processor.answer(written.ids[len(prompt) :]))

    # -- fill

    def fill(
        self,
        text: str | Sequence[str],
        *,
        steps: int | None = None,
        seed: int = 0,
        greedy: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        greedy_tail: float | None = None,
        greedy_above: float | None = None,
        rule: TokenSampler | None = None,
        batch_size: int | None = None,
        constraint: Constraints = None,
        particles: int = 1,
        order: str | None = None,
        sampler: SamplerSpec | None = None,
        exact: bool = False,
        eos_rule: bool = True,
        top: int | None = None,
    ) -> Any:
        """Fill the blanks of one or several texts: `[MASK]` is one token, `[MASK:3]` three.

        `[MASK:2-6]` gets the number of tokens that makes the known tokens most likely. The other options are those of
        `generate`; the constraint applies to the whole text. With `top` the result is that of `top_tokens` instead.
        """
        if top is not None:
            alternatives = self.top_tokens(text, top)
            return alternatives[0] if isinstance(text, str) else alternatives
        temperature = greedy_temperature(greedy, temperature)
        filled = [one.text for one in self.fill_details(text, **GenerationConfig.select(locals()))]
        return filled[0] if isinstance(text, str) else filled

    def fill_details(
        self, texts: str | Sequence[str], *, progress: Progress | None = None, **options: Any
    ) -> list[Generation]:
        """Like `fill`, with the order and confidence of every token; text i has the seed `seed + i`."""
        config, sampler = self.resolve(options, self.fill_details, whole_texts=False)
        checked = check_texts(texts, "fill")
        check_seeds(config.seed, len(checked))
        config.check_sampler(sampler, self.row_length, self.text_processor.max_length)
        return self._generate(self._rows_with_blanks(checked, config), sampler, config, progress=progress)

    def top_tokens(self, texts: str | Sequence[str], top: int = 5) -> list[list[list[tuple[str, float]]]]:
        """For every text and every masked token of it, the `top` most likely tokens with their probabilities.

        They are the prediction of one network call with all blanks of the text masked, before any temperature or
        truncation. The tokens of a longer blank are predicted independently of each other.
        """
        decode = self.text_processor.tokenizer.decode
        rows = self._rows_with_blanks(check_texts(texts, "fill"), GenerationConfig())
        return [[[(decode([token]), p) for token, p in one] for one in masks] for masks in self.top_ids(rows, top)]

    def top_ids(self, rows: Sequence[Sequence[int]], top: int = 5) -> list[list[list[tuple[int, float]]]]:
        """Like `top_tokens` for rows of token ids with masks, with ids in place of texts."""
        check_count("top", top)
        denoiser, checked = self.text_processor.as_trained(self.denoiser), self.text_processor.check_rows(rows)
        return [most_likely_tokens(self.text_processor, denoiser, row, top) for row in checked]

    def _rows_with_blanks(self, texts: list[str], config: GenerationConfig) -> list[list[int]]:
        """The rows of texts with blanks; a blank of open length gets its length."""
        for text in texts:
            if not BLANK.search(text):
                raise UnmaskError(f"The text {text!r} has no blank; mark one with [MASK] or [MASK:n].")
        processor = self.text_processor
        templates = [processor.parse(text) for text in texts]
        if any(map(is_open, templates)):
            layout = self._layout(config)
            return [layout.text_row(one) for one in templates]
        return [processor.text_row(processor.join(one, processor.max_length)) for one in templates]

    def fill_rows(
        self, rows: Sequence[Sequence[int]], *, progress: Progress | None = None, **options: Any
    ) -> list[Generation]:
        """Like `fill_details` for rows of token ids with masks.

        A row must contain the EOS tokens of its length policy (`unmask.data.length_policies.Policy.append_eos`).
        """
        config, sampler = self.resolve(options, self.fill_rows, whole_texts=False)
        checked = self.text_processor.check_rows(rows)
        check_seeds(config.seed, len(checked))
        config.check_sampler(sampler, max(map(len, checked)), self.text_processor.max_length)
        return self._generate(checked, sampler, config, progress=progress)

    # -- edit and rewrite

    def edit(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        **options: Any,
    ) -> str:
        """Rewrite a part of a text: the given characters, or the least likely tokens.

        `spans` are pairs (start, end) of characters, end excluded; every token that holds one of them is replaced.
        `strength` (default 0.3) is the fraction of tokens to replace, those with the lowest probability given the
        others (an eighth of the tokens is masked at a time); the final punctuation stays. `options` are those of
        `generate`: `steps`, `seed`, `order`, `sampler`, `constraint`, `particles`, `temperature` and so on.
        """
        return self.edit_details(text, spans=spans, strength=strength, **options).text

    def rewrite(self, text: str, keep: str | Sequence[str], **options: Any) -> str:
        """Rewrite everything except the words to `keep`, wherever they occur; the number of tokens between them stays.

        Kept words remain whole words. A string is one word; an empty list keeps nothing. `options` are those of `edit`.
        """
        if keep is None:
            raise UnmaskError("keep must be a string or a list of strings, got None.")
        return self.edit_details(text, keep=keep, **options).text

    def edit_details(
        self,
        text: str,
        *,
        spans: Sequence[tuple[int, int]] | None = None,
        strength: float | None = None,
        keep: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Generation:
        """Like `edit` and `rewrite`, with the order and confidence of every token."""
        processor = self.text_processor
        config, sampler = self.resolve(options, self.edit_details, whole_texts=False)
        if sum(one is not None for one in (spans, strength, keep)) > 1:
            raise UnmaskError("spans, strength and keep exclude each other; give one of them.")
        ids = processor.encode([check_text(text)])[0]
        if not ids:
            raise UnmaskError(f"The text {text!r} has no tokens to edit; give a longer text.")
        if keep is not None:
            ids, boundaries = mask_around(processor, text, keep)
            config = config.with_constraints(boundaries)
        config.check_sampler(sampler, self.row_length, processor.max_length)
        if spans is not None:
            ids = mask_spans(processor, text, ids, spans)
        elif keep is None:
            # refuse an impossible constraint before the network scores the tokens
            processor.compile_constraints(config.constraint, [processor.text_row([processor.mask_token_id] * len(ids))])
            denoiser = processor.as_trained(self.denoiser)
            ids = mask_unlikely(processor, denoiser, ids, DEFAULT_STRENGTH if strength is None else strength)
        return self._generate([processor.text_row(ids)], sampler, config, progress=progress)[0]

    # -- score

    def score(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        precision: Precision = "auto",
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Bound:
        """The bound on -log p(texts), or on -log p(texts | given), with its error; `bound[i]` is that of text i.

        `precision` is the Monte-Carlo error to reach, in bits per token. "auto" stops at 0.05 or after 256 draws, None
        after 16 draws. An autoregressive model returns the likelihood itself.
        """
        return self.score_details(texts, given, precision=precision, seed=seed, batch_size=batch_size).headline

    def score_details(
        self,
        texts: str | Sequence[str],
        given: str | Sequence[str] | None = None,
        *,
        steps: tuple[int, ...] = (),
        precision: Precision = "auto",
        seed: int = 0,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Evaluation:
        """`score` by every estimator of the objective, and the T-step bounds for T in `steps`.

        `progress` is called with the number of new draws.
        """
        check_seeds(seed)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        automatic = precision is None or (isinstance(precision, str) and precision == "auto")
        if not automatic and (not isinstance(precision, Real) or not precision > 0):
            raise UnmaskError(f"precision must be a positive number of bits per token, got {precision!r}.")
        rows = self.text_processor.scored_rows(check_texts(texts, "score"), given)
        return self.evaluate(
            rows, steps=steps, each=True, progress=progress, seed=seed, precision=precision, batch_size=batch_size
        )

    def choose(self, text: str, choices: Sequence[str], *, seed: int = 0) -> list[Choice]:
        """The probabilities of given answers at the [MASK] of a text, which add up to 1, in the order given.

        An answer may have several tokens. Those of one token are compared exactly, in one network call for all of them.
        Longer ones are compared by bounds on their likelihood given the rest of the text, with common random numbers,
        so their probabilities have errors.
        """
        check_seeds(seed)
        rows = answer_rows(self.text_processor, text, choices)
        denoiser = self.text_processor.as_trained(self.denoiser)
        nats = answer_nats(denoiser, self.config.schedule, self.text_processor, rows, seed)
        return compare_answers(choices, nats, [len(answer) == 1 for _, answer in rows])

    def evaluate(self, rows: Rows, **options: Any) -> Evaluation:
        """The bounds of rows of tokens; `options` are those of `unmask.likelihood.evaluate`."""
        objective, schedule = self.config.objective, self.config.schedule
        draws = count_draws(objective, rows, len(options.get("steps", ())))
        return evaluate(self.prepare_denoiser(rows.length * draws), objective, schedule, rows, **options)

    # -- parts that the methods above share

    def sampler(
        self, steps: int | None = None, order: str | None = None, sampler: SamplerSpec | None = None
    ) -> Sampler:
        """The sampler with these options; without any, one token per call in uniform order."""
        schedule, predicts_scores = self.config.schedule, self.config.objective.predicts_scores
        chosen = choose_sampler(schedule, steps, order, sampler, predicts_scores)
        if chosen.needs_planner and getattr(self.denoiser, "planner", None) is None:
            raise missing_planner_error(self.path)
        return chosen

    def resolve(
        self, options: dict[str, Any], method: Callable[..., Any], whole_texts: bool = True
    ) -> tuple[GenerationConfig, Sampler]:
        """The options of a method with the defaults of the checkpoint, and the sampler.

        The default sampler is for `whole_texts` without particles, since it may mask tokens again. Otherwise the
        default is one token per call.
        """
        defaults = self.generation_config
        particles = options.get("particles")
        if not whole_texts or not (particles is None or (is_integer(particles) and particles == 1)):
            defaults = {name: value for name, value in defaults.items() if name not in SAMPLER_FIELDS}
        config = GenerationConfig.parse(options, method, defaults)
        return config, self.sampler(config.steps, config.order, config.sampler)

    def _layout(self, config: GenerationConfig) -> TemplateLayout:
        denoiser = self.text_processor.as_trained(self.denoiser)
        return TemplateLayout(self.text_processor, denoiser, config.constraint)

    def _prompt_rows(
        self, prompts: list[str], suffix: str, length: int | None, config: GenerationConfig, sampler: Sampler
    ) -> tuple[list[list[int]], int]:
        """A row for each prompt, and the number of tokens of each."""
        processor = self.text_processor
        if length is None:  # BOS precedes the canvas
            length = self.row_length - self.config.policy.begins_with_bos
        check_count("length", length)
        config.check_sampler(sampler, length, processor.max_length)
        *heads, tail = [processor.parse(text) for text in [*prompts, suffix]]
        if any(map(is_open, [*heads, tail])):
            layout = self._layout(config)
            return [layout.prompt_row(head, tail, length) for head in heads], length
        suffix_ids = processor.join(tail, length)
        rows = [processor.prompt_row(processor.join(head, length), suffix_ids, length) for head in heads]
        return rows, length

    def sampling_options(
        self, rows: list[list[int]], sampler: Sampler, config: GenerationConfig
    ) -> tuple[SamplingOptions, Any]:
        """The options of a sampling run on canvases of some of the rows, and the denoiser for it."""
        options = config.bind(self.text_processor, rows)
        size = config.window or self.text_processor.max_length
        steps = getattr(sampler, "steps", None)
        calls = [min(steps or len(row), row.count(self.text_processor.mask_token_id)) for row in rows]
        tokens = sum(min(len(row), size) * n for row, n in zip(rows, calls, strict=True))
        tokens *= config.particles * config.best_of * (2 if config.guidance else 1)
        return options, self.prepare_denoiser(tokens)

    def _run(self, rows: list[list[int]], sampler: Sampler, config: GenerationConfig) -> Iterator[State]:
        """Run the sampler on all rows as one batch."""
        options, denoiser = self.sampling_options(rows, sampler, config)
        canvas = self.text_processor.canvas(rows, config.seed, self.device)
        return configure_sampler(sampler, options, self.device)(denoiser, canvas)

    def _generate(
        self,
        rows: list[list[int]],
        sampler: Sampler,
        config: GenerationConfig,
        length: int | None = None,
        progress: Progress | None = None,
        on_batch: Callable[[int], None] | None = None,
        return_trajectory: bool = False,
    ) -> list[Generation]:
        """Write all rows, in batches; each result is cut to `length`."""
        options, denoiser = self.sampling_options(rows, sampler, config)
        run, best_of = configure_sampler(sampler, options, self.device), config.best_of
        batch_size = config.batch_size or max(1, options.batch_size(max(map(len, rows)), self.device) // best_of)
        generations: list[Generation] = []
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            canvas = self.text_processor.canvas(batch, config.seed + start, self.device)
            states = run(denoiser, repeat_canvas(canvas, best_of) if best_of > 1 else canvas)
            states = with_progress(states, len(batch), progress)
            written = self.text_processor.finish(states, length, return_trajectory)
            for i in range(len(batch)):
                group = written[i * best_of : (i + 1) * best_of]
                best = group[0] if best_of == 1 else max(group, key=lambda one: config.score_text(one.text))
                generations.append(replace(best, seed=config.seed + start + i))
            if on_batch is not None:
                on_batch(len(batch))
        return generations


class AutoregressiveLM(MaskedDiffusionLM):
    """An autoregressive model with the same methods. It generates from left to right and cannot edit."""

    causal: ClassVar[bool] = True

    def sampler(
        self, steps: int | None = None, order: str | None = None, sampler: SamplerSpec | None = None
    ) -> Sampler:
        if steps is not None or order is not None or sampler is not None:
            raise UnmaskError(
                "An autoregressive model generates from left to right, one token per call; leave out steps, order and "
                "sampler."
            )
        return build("sampler", "ar")

    def choose(self, text: str, choices: Sequence[str], *, seed: int = 0) -> list[Choice]:
        """As in a masked model, but always exact: the likelihoods of the text with each answer are compared."""
        before, after = split_at_blank(text, choices)
        nats = torch.tensor([[self.score(f"{before}{choice}{after}", seed=seed).nats for choice in choices]])
        return compare_answers(choices, nats, [True] * len(choices))

    def top_ids(self, rows: Sequence[Sequence[int]], top: int = 5) -> list[list[list[tuple[int, float]]]]:
        raise UnmaskError("An autoregressive model does not predict all blanks at once; use a masked model.")

    def edit_details(self, text: str, **options: Any) -> Generation:
        raise UnmaskError("An autoregressive model cannot see the text after a token; edit with a masked model.")

    def _prompt_rows(
        self, prompts: list[str], suffix: str, length: int | None, config: GenerationConfig, sampler: Sampler
    ) -> tuple[list[list[int]], int]:
        if suffix:
            raise UnmaskError("An autoregressive model cannot see a suffix; leave it out, or use a masked model.")
        length = self.row_length if length is None else length
        return super()._prompt_rows(prompts, suffix, length, config, sampler)


def _check_prompts(prompt: str, prompts: Iterable[str] | None) -> list[str]:
    if prompts is None:
        return [prompt]
    if prompt:
        raise UnmaskError("prompt and prompts exclude each other; give one of them.")
    checked = [] if isinstance(prompts, str) or not isinstance(prompts, Iterable) else list(prompts)
    if not checked:
        raise UnmaskError(f"prompts must be a non-empty list of strings, got {prompts!r}.")
    return checked


def with_progress(states: Iterator[StateOrFrame], texts: int, progress: Progress | None) -> Iterator[StateOrFrame]:
    """Yield the states or frames of a sampling run; `progress` is called with the fraction of the texts that is new."""
    reported = 0.0
    for state in states:
        if progress is not None:
            total = state.calls if isinstance(state, Frame) else state.total
            done = texts * state.call / total if total else texts
            progress(done - reported)
            reported = done
        yield state
