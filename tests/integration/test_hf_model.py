"""`model=hf`: a chat model from a folder, natural prompts, full weights and LoRA, by the whole program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from distmatch.batch import Completions, Prompt
from distmatch.checkpoints import newest_checkpoint
from distmatch.modules.language_model import LanguageModel, load_language_model
from distmatch.run import run
from distmatch.sampling.hf import HFSampler
from distmatch.settings import folder as run_folder
from distmatch.settings import main
from distmatch.settings.checks import check
from distmatch.tasks.np.knapsack import Knapsack
from tests.runs import CPU, ROOT, config, metrics, rollouts

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADER = "<|im_start|>assistant\n"
ANSWERS = [f"Answer: [{i}]" for i in range(8)]
LORA = "model.lora={r: 4, lora_alpha: 8, target_modules: all-linear}"
RUN = ["model=hf", "task=knapsack", "task.level=easy", "algo=grpo", "trainer.max_epochs=2", "logger=none"]
RUN += [
    "data.max_prompt_tokens=1100",
    "data.max_tokens=8",
    "data.prompts_per_iteration=2",
    "data.group_size=4",
]
RUN += ["data.eval_prompts=2", "data.eval_samples=4", "module.lr=1e-3"]


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that can spell anything, with the chat format of Qwen and a word for short answers."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    task = Knapsack(level="easy")
    texts = [task.render(task.instance("train", i), "natural").text for i in range(3)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.add_tokens(ANSWERS)
    made.chat_template = TEMPLATE
    return made


def answering(model: Qwen3ForCausalLM, tokens: Sequence[int]) -> Qwen3ForCausalLM:
    """Favour some tokens after any text, so that a random model's rewards differ."""
    direction = torch.randn(model.config.hidden_size) * 0.1
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(direction)
        model.get_output_embeddings().weight[list(tokens)] += 0.4 * direction
    return model


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random chat model of about a million parameters, saved as transformers saves one."""
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    made = Qwen3Config(vocab_size=len(tokenizer), tie_word_embeddings=False, **sizes, **heads, **ids)
    words = tokenizer.convert_tokens_to_ids([*ANSWERS, "<|im_end|>"])
    answering(Qwen3ForCausalLM(made), words).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def prompts_seen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids that the sampler is given."""
    seen: list[list[int]] = []
    sample = HFSampler.sample

    def spy(self: HFSampler, prompts: Sequence[Sequence[int]], *rest: object) -> Completions:
        seen.extend(list(prompt) for prompt in prompts)
        return sample(self, prompts, *rest)

    monkeypatch.setattr(HFSampler, "sample", spy)
    return seen


def trained(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(newest_checkpoint(folder), weights_only=True)["state_dict"]


def size(tensors: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def resume(folder: Path, *overrides: str) -> None:
    cfg = run_folder.resume([f"resume={folder}", *overrides])
    check(cfg)
    run(cfg)


def replaced(base: Sequence[str], *overrides: str) -> list[str]:
    """Overrides in which the later ones take the place of earlier ones with the same key."""
    keys = tuple(f"{text.partition('=')[0]}=" for text in overrides)
    return [*(text for text in base if not text.startswith(keys)), *overrides]


def restored(chat_folder: Path, folder: Path) -> LanguageModel:
    """The policy that a LoRA run's checkpoint stands for."""
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    policy = load_language_model(str(chat_folder), lora=lora)
    saved = {name.removeprefix("policy."): value for name, value in trained(folder).items()}
    missing, unknown = policy.load_state_dict(saved, strict=False)
    assert not unknown
    assert not any("lora_" in name for name in missing)
    return policy


def test_the_tokenizer_spells_json_and_prompts_end_with_the_header(chat_folder: Path) -> None:
    policy, task = load_language_model(str(chat_folder)), Knapsack(level="easy")
    prompt = task.render(task.instance("val", 0), "natural")
    text = policy.tokenizer.decode(policy.encode(prompt))
    assert text == f"<|im_start|>user\n{prompt.text}<|im_end|>\n{HEADER}"
    assert policy.eos_ids == {policy.tokenizer.convert_tokens_to_ids("<|im_end|>")}


def test_full_weights(chat_folder: Path, tmp_path: Path, prompts_seen: list[list[int]]) -> None:
    folder = tmp_path / "run"
    # Without the canary, whose prompts are seen too.
    run(config(*RUN, "callbacks.canary=null", f"model.path={chat_folder}", f"paths.run_dir={folder}"))
    assert [row["iteration"] for row in metrics(folder)] == ["0", "1"]
    tokenizer = AutoTokenizer.from_pretrained(chat_folder)
    assert len(prompts_seen) == 2 + 2 * 2 + 2  # held out, two iterations, held out
    for ids in prompts_seen:
        text = tokenizer.decode(ids)
        assert text.startswith("<|im_start|>user\n# Introduction")
        assert '"capacity"' in text
        assert text.endswith(HEADER)
        assert text.count("<|im_start|>") == 2
    assert {record["task"] for record in rollouts(folder)} == {"knapsack"}
    assert len({record["reward"] for record in rollouts(folder)}) > 1
    before = AutoModelForCausalLM.from_pretrained(chat_folder).state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder / "export").state_dict()
    saved = trained(folder)
    assert set(saved) == {f"policy.model.{name}" for name in after}
    assert all(torch.equal(value, saved[f"policy.model.{name}"]) for name, value in after.items())
    assert any(not torch.equal(after[name], before[name]) for name in before)
    again = AutoTokenizer.from_pretrained(folder / "export")
    assert again.chat_template == TEMPLATE
    assert again("Answer: [1] {}")["input_ids"] == tokenizer("Answer: [1] {}")["input_ids"]


@pytest.fixture(scope="module")
def lora_run(chat_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations in one go."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    run(config(*RUN, LORA, f"model.path={chat_folder}", f"paths.run_dir={folder}"))
    return folder


def test_a_lora_checkpoint_holds_the_adapter_alone(chat_folder: Path, lora_run: Path) -> None:
    saved = trained(lora_run)
    assert all(".lora_" in name for name in saved)
    base = AutoModelForCausalLM.from_pretrained(chat_folder)
    assert size(saved) < 0.05 * base.num_parameters()
    assert max(float(value.abs().max()) for name, value in saved.items() if ".lora_B." in name) > 0


def test_a_lora_export_is_a_merged_plain_model(chat_folder: Path, lora_run: Path) -> None:
    policy = restored(chat_folder, lora_run)
    assert not list((lora_run / "export").glob("adapter*"))
    export = AutoModelForCausalLM.from_pretrained(lora_run / "export")
    base = AutoModelForCausalLM.from_pretrained(chat_folder)
    ids = torch.tensor([policy.encode(Prompt("Pack the knapsack.", "natural"))])
    with torch.no_grad():
        expected = policy.model(ids).logits
        assert torch.allclose(export(ids).logits, expected, atol=1e-4)
        assert not torch.allclose(base(ids).logits, expected, atol=1e-4)
    assert set(export.state_dict()) == set(base.state_dict())


def test_a_resumed_lora_run_equals_an_uninterrupted_one(
    chat_folder: Path, lora_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    short = replaced(RUN, "trainer.max_epochs=1")
    run(config(*short, LORA, f"model.path={chat_folder}", f"paths.run_dir={folder}"))
    halfway = trained(folder)
    resume(folder, "trainer.max_epochs=2")
    whole, resumed = trained(lora_run), trained(folder)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert any(not torch.equal(halfway[name], resumed[name]) for name in whole)
    assert rollouts(folder) == rollouts(lora_run)
    assert metrics(folder) == metrics(lora_run)


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *overrides: str) -> str:
    """What the program answers to a mistake, started in this process."""
    monkeypatch.setenv("DISTMATCH_CONFIG", "")  # set by the program, and put back here
    monkeypatch.delenv("DISTMATCH_CONFIG")
    status = main(ROOT / "configs" / "train.yaml", run, "", [*CPU, *overrides])
    answer = capsys.readouterr().err.strip()
    assert status == 2, answer
    assert answer.startswith("error: ")
    assert "Traceback" not in answer
    return answer


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["data.max_prompt_tokens=100"],
            ["knapsack-easy-train", "over data.max_prompt_tokens=100", "task.level"],
        ),
        (["data.max_prompt_tokens=9", "model.style=compact"], ["over data.max_prompt_tokens=9"]),
        (["data.max_prompt_tokens=2048"], ["data.max_prompt_tokens=2048", "data.max_tokens=8", "has 2048"]),
        (["model.path=/no/such/folder"], ["model.path=/no/such/folder", "no such folder"]),
        (["model.path=no-such-folder/here/there"], ["model.path=no-such-folder/here/there"]),
    ],
    ids=lambda value: value[0] if "=" in value[0] else "",
)
def test_what_cannot_work_is_refused_by_name(
    chat_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    words: list[str],
) -> None:
    base = [*RUN, f"model.path={chat_folder}", f"paths.run_dir={tmp_path / 'run'}"]
    answer = said(capsys, monkeypatch, *replaced(base, *overrides))
    for word in words:
        assert word in answer


def test_a_hub_that_cannot_be_reached_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(path: str, **_: object) -> None:
        raise OSError(f"We couldn't connect to the hub to load {path}")  # as transformers says it

    monkeypatch.setattr("distmatch.modules.language_model.AutoConfig.from_pretrained", unreachable)
    answer = said(capsys, monkeypatch, *RUN, "model.path=owner/name", f"paths.run_dir={tmp_path / 'run'}")
    assert "model: We couldn't connect to the hub to load owner/name" in answer


def test_a_folder_without_a_model_is_refused_by_name(
    chat_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    answer = said(
        capsys, monkeypatch, *RUN, f"model.path={tmp_path / 'empty'}", f"paths.run_dir={tmp_path / 'run'}"
    )
    assert str(tmp_path / "empty") in answer


def test_a_plain_tokenizer_is_refused_for_natural_prompts(
    chat_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a chat template a model never learns where its turn begins, and never ends it."""
    plain = load_language_model(str(chat_folder))
    plain.tokenizer.chat_template = None
    plain.save(tmp_path / "plain")
    answer = said(
        capsys, monkeypatch, *RUN, f"model.path={tmp_path / 'plain'}", f"paths.run_dir={tmp_path / 'run'}"
    )
    assert "model.style=natural needs a tokenizer with a chat template" in answer
