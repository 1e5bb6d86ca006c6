"""The habits of Hugging Face users: pipelines, Auto classes and the usual methods, with plain `transformers`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import unmask
from tests.conftest import make_checkpoint
from unmask import DataCollatorForMaskedDiffusion
from unmask.checkpoint import SHIPPED
from unmask.errors import UnmaskError
from unmask.laws.base import describe, members
from unmask.laws.models import MASK, V, random_network, random_text
from unmask.laws.objectives import expected_nelbo
from unmask.objectives.subs import MaskCount
from unmask.pipeline import load
from unmask.schedules import LogLinear

torch.set_num_threads(1)

# the networks of this package; encoders are those of transformers
MODELS = pytest.mark.parametrize("spec", [spec for spec in members("model") if spec.name != "encoder"], ids=describe)


def auto_class(spec: Any) -> Any:
    return AutoModelForCausalLM if spec.causal else AutoModelForMaskedLM


# ---- pipelines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stories", "Once upon a [MASK], there was a little girl named Lily."),
        ("stories", "Tom and his [MASK] went to the park. They saw a big dog."),
        ("stories", "She was very [MASK]"),
        ("stories", "[MASK] day, a bird flew away."),
        ("smoke", "abc[MASK]defg"),
        ("smoke", "hgfe[MASK]"),
    ],
)
def test_the_fill_mask_pipeline_gives_the_token_of_fill(name: str, text: str) -> None:
    best = pipeline("fill-mask", model=str(SHIPPED / name), dtype=torch.float32)(text)[0]
    assert best["sequence"] == load(name, device="cpu").fill(text, greedy=True)


def test_the_fill_mask_pipeline_pads_a_batch() -> None:
    fill = pipeline("fill-mask", model=str(SHIPPED / "stories"), dtype=torch.float32)
    texts = ["Once upon a [MASK], there was a little girl.", "The cat [MASK] on the mat."]
    for alone, together in zip(map(fill, texts), fill(texts, batch_size=2), strict=True):
        assert [one["token"] for one in alone] == [one["token"] for one in together]
        assert alone[0]["score"] == pytest.approx(together[0]["score"], abs=1e-4)


@pytest.mark.parametrize(("policy", "ending"), [("packed", []), ("padded", [256]), ("supervised_eos", [])])
def test_tokenizers_frame_rows_as_trained(policy: str, ending: list[int], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / policy, policy=policy)
    lm, tokenizer = load(folder, device="cpu"), AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab [MASK]")["input_ids"] == [97, 98, 32, 257, *ending]
    assert lm.text_processor.encode(["ab "]) == [[97, 98, 32]]
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 256
    assert tokenizer.model_max_length == lm.denoiser.config.max_length
    text = "ab [MASK] cd"
    ours = lm.fill_details(text, temperature=0.0)[0]
    best = pipeline("fill-mask", model=str(folder))(text, top_k=3)
    unended = next(one for one in best if one["token"] != 256)  # `fill` writes no EOS before given text
    assert unended["token"] == ours.ids[3]


def test_the_text_generation_pipeline_writes_the_tokens_of_generate() -> None:
    write = pipeline("text-generation", model=str(SHIPPED / "stories-ar"), dtype=torch.float32)
    prompt = "Once upon a time"
    greedy = load("stories-ar", device="cpu").generate(prompt=prompt, temperature=0.0, length=24)[0]
    alone = write(prompt, max_new_tokens=24, do_sample=False)[0]["generated_text"]
    assert alone.startswith(greedy)
    assert write([prompt, "The"], max_new_tokens=24, do_sample=False, batch_size=2)[0][0]["generated_text"] == alone
    longest = write(prompt, max_new_tokens=1000, do_sample=False)[0]["generated_text"]
    assert len(write.tokenizer(longest)["input_ids"]) <= write.tokenizer.model_max_length == 256


# ---- models ---------------------------------------------------------------------------------------------------------


@MODELS
def test_auto_classes_open_every_model(spec: Any, tmp_path: Path) -> None:
    network, ids = random_network(spec), random_text(2)
    network.save_pretrained(tmp_path)
    for auto in (auto_class(spec), AutoModel):
        for options in ({}, {"device_map": "cpu"}, {"device_map": "auto"}):
            loaded = auto.from_pretrained(tmp_path, **options)
            assert type(loaded) is type(network)
            for name, weight in loaded.state_dict().items():
                assert torch.equal(weight.cpu(), network.state_dict()[name])
            torch.testing.assert_close(loaded(ids.to(loaded.device)).logits.cpu(), network(ids).logits)
            assert loaded.dtype == torch.float32
    rounded = auto_class(spec).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert rounded.dtype == rounded(ids).logits.dtype == torch.bfloat16
    assert rounded.num_parameters() == sum(weight.numel() for weight in network.parameters())


@MODELS
def test_every_model_has_the_usual_methods(spec: Any) -> None:
    network, ids = random_network(spec), random_text(2)
    output = network(ids, output_hidden_states=True, output_attentions=None)
    assert len(output.hidden_states) == network.config.num_hidden_layers + 1
    assert torch.equal(output.hidden_states[-1], network.hidden(ids))
    assert network(ids, output_hidden_states=False).hidden_states is None
    with pytest.raises(UnmaskError, match="output_attentions=True is not supported"):
        network(ids, output_attentions=True)

    network.tie_weights()
    assert torch.equal(network(ids).logits, output.logits)
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            network.gradient_checkpointing_enable()
        network.zero_grad()
        network.train()(ids, labels=ids).loss.backward()
        gradients.append(network.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)


@MODELS
def test_every_vocabulary_can_be_resized(spec: Any, tmp_path: Path) -> None:
    network, ids = random_network(spec), random_text(2)
    before = network(ids).logits
    embedding = network.resize_token_embeddings(V + 3, pad_to_multiple_of=8)
    assert embedding is network.get_input_embeddings()
    assert network.config.vocab_size == len(embedding.weight) == 16
    assert network.get_output_embeddings().weight.shape == embedding.weight.shape
    torch.testing.assert_close(network(ids).logits[..., :V], before)
    assert network(ids.fill_(V)).logits.isnan().sum() == 0
    network.save_pretrained(tmp_path)
    torch.testing.assert_close(auto_class(spec).from_pretrained(tmp_path)(ids).logits, network(ids).logits)
    network.resize_token_embeddings(MASK + 1)
    assert network(random_text(1) % MASK).logits.shape[-1] == MASK + 1
    with pytest.raises(UnmaskError, match=f"above {MASK}, the id of the mask token, got {MASK}"):
        network.resize_token_embeddings(MASK)


# ---- Trainer --------------------------------------------------------------------------------------------------------


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    settings = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "seed": 1}
    return TrainingArguments(str(folder), **(settings | options))


@pytest.mark.parametrize("schedule", ["loglinear", "cosine"])
def test_the_loss_under_our_collator_is_the_bound(schedule: str, mdlm_folder: Path) -> None:
    """Its mean over many batches is the expectation of eq. 11 over all masks, tokens that are given left out."""
    lm = load(mdlm_folder, device="cpu")
    ids = torch.tensor([list(b"abcdef"), list(b"gh  gh")])
    given = torch.zeros_like(ids, dtype=torch.bool)
    given[1, :3] = True
    nats = [expected_nelbo(MaskCount(), lm.denoiser, LogLinear(), *row).sum() for row in zip(ids, ~given, strict=True)]
    expected = sum(nats) / (~given).sum()
    collate = DataCollatorForMaskedDiffusion(lm.tokenizer, schedule)
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, ids.masked_fill(given, -100), strict=True)]
    torch.manual_seed(0)
    with torch.no_grad():
        losses = torch.stack([lm.denoiser(**collate(rows * 128)).loss for _ in range(100)]).double()
    error = losses.std() / len(losses) ** 0.5
    assert error < 0.01 * expected
    assert abs(losses.mean() - expected) < 4 * error


def test_the_collator_pads_masks_and_fills() -> None:
    tokenizer = unmask.load("stories", device="cpu").tokenizer
    rows = [tokenizer("Once upon a time"), tokenizer("The end", padding="max_length", max_length=6), [5, 6]]
    torch.manual_seed(0)
    batch = DataCollatorForMaskedDiffusion(tokenizer)(rows)
    assert batch["attention_mask"].sum(dim=1).tolist() == [4, 2, 2]
    assert torch.equal(batch["labels"] != -100, batch["attention_mask"].bool())
    visible = batch["input_ids"] != tokenizer.mask_token_id
    counted = batch["labels"] != -100
    assert torch.equal(batch["input_ids"][visible & counted], batch["labels"][visible & counted])
    torch.testing.assert_close(batch["loss_weight"], 1 / (1 - batch["alpha"]))
    filled = DataCollatorForMaskedDiffusion.from_pretrained("stories")(rows)
    assert filled["labels"].shape == (3, 256)
    assert (filled["labels"][:, 6:] == tokenizer.eos_token_id).all()
    assert filled["loss_weight"].tolist() == [1.0] * 3, "this checkpoint was trained with a flat weight"
    assert "attention_mask" not in filled


def test_times_are_stratified_over_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    collate = DataCollatorForMaskedDiffusion(unmask.load("smoke", device="cpu").tokenizer)
    monkeypatch.setenv("WORLD_SIZE", "2")
    alphas = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(3)
        alphas.append(collate([[1, 2, 3]] * 8)["alpha"])
    assert sorted((16 * torch.cat(alphas)).long().tolist()) == list(range(16))
    assert sorted((8 * alphas[0]).long().tolist()) == list(range(8))


def test_trainer_fine_tunes_a_checkpoint_and_load_opens_the_result(tmp_path: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(SHIPPED / "smoke", dtype=torch.float32)
    collate = DataCollatorForMaskedDiffusion.from_pretrained("smoke")
    rows = [{"input_ids": collate.tokenizer("hgfedcba" * 4)["input_ids"]} for _ in range(64)]
    settings = arguments(
        tmp_path, max_steps=30, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=3e-3
    )
    trainer = Trainer(model, settings, collate, rows, rows[:8], processing_class=collate.tokenizer)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    trainer.save_model()
    assert trainer.evaluate()["eval_loss"] < before / 3
    with pytest.warns(
        UserWarning, match="no unmask.json; it is opened with the objective subs, the schedule loglinear"
    ):
        lm = unmask.load(tmp_path, device="cpu")
    assert lm.fill("hgfed[MASK]bahgfedcba", greedy=True) == "hgfedcbahgfedcba"
    assert (lm.config.policy.name, lm.config.length) == ("packed", 64)


def test_trainer_scales_the_loss_by_the_tokens_of_all_accumulated_batches(tmp_path: Path) -> None:
    """One step on two batches of unlike sizes gives the gradient of one batch of both, for either kind of network."""
    for name, auto in (("smoke", AutoModelForMaskedLM), ("causal", AutoModelForCausalLM)):
        folder = SHIPPED / name if name == "smoke" else make_checkpoint(tmp_path / name, model="causal")
        weights = []
        for size in (1, 2):
            model = auto.from_pretrained(folder, dtype=torch.float32)
            rows = [{"input_ids": [1, 2, 3, 4, 5, 6]}, {"input_ids": [7, 1]}]
            settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 2 // size}
            settings |= {"max_steps": 1, "learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0}
            Trainer(model, arguments(tmp_path / "out", **settings), all_labels, rows).train()
            weights.append(model.get_output_embeddings().bias.detach())
        torch.testing.assert_close(*weights)


def all_labels(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(one["input_ids"]) for one in features)
    rows = [one["input_ids"] + [-100] * (longest - len(one["input_ids"])) for one in features]
    labels = torch.tensor(rows)
    return {"input_ids": labels.clamp_min(0), "labels": labels, "attention_mask": (labels != -100).long()}


@pytest.mark.parametrize(
    ("name", "options", "policy"),
    [("masked", {"policy": "supervised_eos"}, "supervised_eos"), ("masked", {"policy": "padded"}, "padded"),
     ("masked", {"policy": "packed"}, "packed"), ("causal", {"model": "causal"}, "padded")],
)  # fmt: skip
def test_a_folder_without_unmask_json_opens_with_what_its_network_tells(
    name: str, options: dict[str, str], policy: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / name, **options)
    saved = load(folder, device="cpu")
    for file in ("unmask.json", "checksums.json"):
        (folder / file).unlink()
    with pytest.warns(UserWarning, match=f"the length policy {policy}"):
        lm = load(folder, device="cpu")
    assert type(lm) is type(saved)
    assert lm.config.policy.name == policy
    assert lm.config.length == saved.config.length
    assert lm.generate(prompt="ab", length=12, seed=3) == saved.generate(prompt="ab", length=12, seed=3)


# ---- the hub --------------------------------------------------------------------------------------------------------


class Hub:
    """Stands in for the hub: repositories are folders below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.online = True

    def api(self, token: str | None = None) -> Hub:
        return self

    def model_info(self, name: str, revision: str | None = None, timeout: float | None = None) -> None:
        if not self.online:
            raise ConnectionError("no route to host")
        if not (self.root / name).is_dir() or revision not in (None, "main"):
            raise RepositoryNotFoundError("404", response=MagicMock())

    def snapshot_download(
        self, name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: str, **options: Any
    ) -> str:
        assert "*.safetensors" in allow_patterns
        assert not any(pattern in allow_patterns for pattern in ("*", "*.py", "*.bin", "*.pt"))
        if not (self.root / name).is_dir():
            raise FileNotFoundError(name)
        return str(self.root / name)

    def create_repo(self, name: str, private: bool | None, exist_ok: bool) -> str:
        if not self.online:
            raise ConnectionError("no route to host")
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)
        return f"https://huggingface.co/{name}"

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
        for path in folder_path.iterdir():
            (self.root / repo_id / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", hub.api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


@pytest.mark.parametrize("model", ["dit", "causal"])
def test_a_model_goes_to_the_hub_and_comes_back(model: str, hub: Hub, tmp_path: Path) -> None:
    lm = load(make_checkpoint(tmp_path / "mine", model=model), device="cpu")
    lm.generation_config = {"top_p": 0.9}
    assert lm.push_to_hub("org/name") == "https://huggingface.co/org/name"
    card = (hub.root / "org/name/README.md").read_text()
    assert 'unmask.load("org/name")' in card
    assert "library_name: unmask" in card
    for hub.online in (True, False):
        again = unmask.load("org/name", device="cpu")
        assert again.generate(seed=2, length=12) == lm.generate(seed=2, length=12)
        assert again.generation_config == {"top_p": 0.9}


@pytest.mark.parametrize(
    ("online", "name", "revision", "message"),
    [
        (True, "org/none", None, "no public model of this name on the Hugging Face hub; check the name, or log in"),
        (True, "org/none", "v2", "no public model with the revision 'v2' of this name"),
        (False, "org/none", None, r"cannot be reached to look .*\(no route to host\); connect to the internet once"),
        (True, "tests/none", None, r"There is no checkpoint at 'tests/none'; give a folder .*, or a shipped model:"),
        (True, "none", None, r"There is no checkpoint at 'none'; give a folder .*, or a shipped model: "),
        (True, "./none", None, "There is no checkpoint at './none'; give a folder"),
    ],
)
def test_a_missing_model_is_one_sentence(
    online: bool, name: str, revision: str | None, message: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    hub.online = online
    with pytest.raises(UnmaskError, match=message) as error:
        unmask.load(name, revision=revision)
    assert len(str(error.value).splitlines()) == 1


def test_an_upload_that_fails_is_one_sentence(hub: Hub) -> None:
    hub.online = False
    with pytest.raises(UnmaskError, match=r"could not be uploaded to 'org/name' \(no route to host\); check the name"):
        unmask.load("smoke", device="cpu").push_to_hub("org/name")


def test_offline_the_real_client_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    with pytest.raises(UnmaskError, match="'some-org/some-name', and the Hugging Face hub cannot be reached"):
        unmask.load("some-org/some-name")
    assert time.perf_counter() - start < 5


def test_save_pretrained_writes_a_checkpoint_and_replaces_nothing_else(tmp_path: Path) -> None:
    lm = unmask.load("smoke", device="cpu")
    for _ in range(2):
        lm.save_pretrained(tmp_path / "saved")
    again = unmask.load(tmp_path / "saved", device="cpu")
    assert again.generate(seed=1) == lm.generate(seed=1)
    assert (tmp_path / "saved/README.md").read_text() == (SHIPPED / "smoke/README.md").read_text()
    auto = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(weight, lm.denoiser.state_dict()[name]) for name, weight in auto.state_dict().items())
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/notes.txt").write_text("mine")
    with pytest.raises(UnmaskError, match="exists and is not empty; name a new folder"):
        lm.save_pretrained(tmp_path / "kept")
    assert (tmp_path / "kept/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "d3pm"}, "objective must be subs, got 'd3pm'; train others with 'unmask train'"),
        ({"length": 64}, "no EOS token to fill rows with; leave out length"),
    ],
)
def test_a_collator_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        DataCollatorForMaskedDiffusion(unmask.load("smoke", device="cpu").tokenizer, **options)
