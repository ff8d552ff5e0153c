"""ExactDivergence against an enumeration of its own, and in whole runs of the tiny model."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from distmatch.callbacks.exact_divergence import (
    LEAST_OUTSIDE,
    ExactDivergence,
    enumerate_answers,
    spell,
    with_outside,
)
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import load_tiny
from distmatch.rewards import NPCode, NPGated, Overlong
from distmatch.run import run
from distmatch.settings.errors import ConfigError
from distmatch.settings.folder import resume
from distmatch.tasks.lab import Lab
from tests.runs import LAB, SMALL, config, metrics

FIGURES = ("reward", "entropy", "modes", "best_mass", "kl_target_policy", "kl_policy_target")
FIGURES += ("total_variation", "log_z_exact", "mean_length", "outside_mass")


# ---- by hand -----------------------------------------------------------------------------------------------


@torch.no_grad()
def generated(policy: LanguageModel, prompt: str, text: str, temperature: float) -> float:
    """Probability of the letters and EOS from the bare transformers model, for one string at a time."""
    start = policy.tokenizer(prompt)["input_ids"]
    answer = policy.tokenizer(" ".join(text), add_special_tokens=False)["input_ids"]
    answer = [*answer, policy.tokenizer.eos_token_id]
    logits = policy.model(torch.tensor([start + answer])).logits[0].double() / temperature
    steps = logits.softmax(dim=1)[len(start) - 1 : -1]
    return math.prod(float(step[token]) for step, token in zip(steps, answer, strict=True))


def expected(pi: list[float], ref: list[float], rewards: list[float], best: list[bool], beta: float, k: int):
    z = math.fsum(b * math.exp(beta * r) for b, r in zip(ref, rewards, strict=True))
    star = [b * math.exp(beta * r) / z for b, r in zip(ref, rewards, strict=True)]
    return {
        "reward": math.fsum(a * r for a, r in zip(pi, rewards, strict=True)),
        "entropy": -math.fsum(a * math.log(a) for a in pi),
        "modes": math.fsum(1 - (1 - a) ** k for a, good in zip(pi, best, strict=True) if good),
        "best_mass": math.fsum(a for a, good in zip(pi, best, strict=True) if good),
        "kl_target_policy": math.fsum(s * math.log(s / a) for s, a in zip(star, pi, strict=True)),
        "kl_policy_target": math.fsum(a * math.log(a / s) for s, a in zip(star, pi, strict=True)),
        "total_variation": math.fsum(abs(s - a) for s, a in zip(star, pi, strict=True)) / 2,
        "log_z_exact": math.log(z),
    }


@pytest.mark.parametrize(
    ("algo", "beta", "shortest", "reward"),
    [
        ("vargrad", 15.0, None, "np_gated"),  # has a beta and scores the reference for itself
        ("grpo", 4.0, 4, "np_code"),  # has neither
    ],
)
def test_every_figure_against_an_enumeration(
    algo: str, beta: float, shortest: int | None, reward: str, lab_weights: Path, tmp_path: Path
) -> None:
    """The first row of a run of two prompts; np_code gives -1 - 1.5 outside and 1 + value within."""
    sizes = {"alphabet": 3, "length": 5, "min_length": shortest, "modes": 6, "near": 9, "prompts": 3}
    more = [f"task.{key}={'null' if value is None else value}" for key, value in sizes.items()]
    more += [f"algo={algo}", f"reward={reward}", f"model.weights={lab_weights}", "data.temperature=0.8"]
    more += ["callbacks=lab", "callbacks.exact_divergence.beta=4", "callbacks.exact_divergence.samples=9"]
    more += ["callbacks.export=null", "module.micro_batch_tokens=300", "trainer.max_epochs=1"]
    run(config(*LAB, *more, f"paths.run_dir={tmp_path / 'run'}"))
    policy, lab = load_tiny(str(lab_weights)), Lab(**sizes)
    texts = ["".join(t) for n in range(shortest or 5, 6) for t in itertools.product("abc", repeat=n)]
    means: dict[str, float] = dict.fromkeys(FIGURES, 0.0)
    for prompt in range(2):
        pi = [generated(policy, f"lab {prompt}", text, 0.8) for text in texts]
        assert 0.05 < sum(pi) < 0.95
        data = lab.instance("train", prompt).data
        values = [1.0 if t in data["modes"] else 0.5 if t in data["near"] else 0.0 for t in texts]
        rewards = [v + (1.0 if reward == "np_code" else 0.0) for v in values]
        rewards.append(-2.5 if reward == "np_code" else 0.0)
        everything = [*pi, 1 - math.fsum(pi)]
        figures = expected(everything, everything, rewards, [*(v == 1 for v in values), False], beta, 9)
        figures["mean_length"] = math.fsum(a * len(t) for a, t in zip(pi, texts, strict=True))
        figures["outside_mass"] = everything[-1]
        means = {name: means[name] + figures[name] / 2 for name in FIGURES}
    row = metrics(tmp_path / "run")[0]
    assert {k: float(row[f"exact/{k}"]) for k in FIGURES} == pytest.approx(means, rel=1e-4)


# ---- whole runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["grpo", "vargrad"])
def test_a_run_leaves_the_figures_where_all_others_are(algo: str, lab_weights: Path, tmp_path: Path) -> None:
    """At the start, in the rhythm and at the end, nowhere else; in TensorBoard at their steps."""
    folder = tmp_path / "run"
    more = [f"algo={algo}", "callbacks=lab", f"model.weights={lab_weights}", "reward=np_gated"]
    more += [
        "callbacks.exact_divergence.every_n_iterations=3",
        "trainer.max_epochs=6",
        "data.updates_per_rollout=2",
    ]
    run(config(*LAB, *more, f"paths.run_dir={folder}"))
    rows = metrics(folder)
    for name in FIGURES:
        cells = [row[f"exact/{name}"] for row in rows]
        assert [bool(cell) for cell in cells] == [True, False, False, True, False, True], name
        assert all(math.isfinite(float(cell)) for cell in cells if cell)
    start, end = (float(rows[i]["exact/log_z_exact"]) for i in (0, -1))
    assert start == end  # of the reference, which never moves
    assert float(rows[0]["exact/outside_mass"]) < 0.2
    target = float(rows[0]["exact/kl_target_policy"])
    assert target > 0 and float(rows[-1]["exact/kl_target_policy"]) != target
    assert ("train/log_z_mean" in rows[0]) == (algo == "vargrad")
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    drawn = events.Scalars("exact/kl_target_policy")
    assert [event.step for event in drawn] == [2, 8, 12]
    assert drawn[0].value == pytest.approx(target, rel=1e-6)
    assert "log/dropped_scalars" not in events.Tags()["scalars"]


def test_a_resumed_run_measures_against_the_model_before_training(lab_weights: Path, tmp_path: Path) -> None:
    """GRPO has no reference of its own; the weights of the checkpoint must not become one."""
    folder = tmp_path / "run"
    more = ["algo=grpo", "callbacks=lab", f"model.weights={lab_weights}", "reward=np_gated"]
    more += ["callbacks.exact_divergence.every_n_iterations=2", f"paths.run_dir={folder}"]
    run(config(*LAB, *more, "trainer.max_epochs=3"))
    run(resume([f"resume={folder}", "trainer.max_epochs=5"]))
    rows = metrics(folder)
    assert [bool(row["exact/log_z_exact"]) for row in rows] == [True, False, True, False, True]
    assert len({rows[i]["exact/log_z_exact"] for i in (0, 2, 4)}) == 1
    assert rows[0]["exact/kl_target_policy"] != rows[4]["exact/kl_target_policy"]


def test_a_reference_that_does_not_know_the_language_is_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["algo=grpo", "callbacks=lab", "model.weights=random", "trainer.max_epochs=1"]
    run(config(*LAB, *SMALL, *more, f"paths.run_dir={tmp_path / 'run'}"))
    assert "of its mass outside the lab's language" in " ".join(capsys.readouterr().out.split())


def test_another_task_is_refused_before_any_work(tmp_path: Path) -> None:
    more = ["task=knapsack", "callbacks=lab", "trainer.max_epochs=1", f"paths.run_dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match="strings of task=lab, and this run's task is knapsack"):
        run(config(*more))


# ---- spelling ----------------------------------------------------------------------------------------------


def test_the_tiny_model_spells_each_string_in_one_way(small_policy: LanguageModel) -> None:
    lab = Lab(alphabet=8, length=2, min_length=1, modes=2, near=2)
    tokens = spell(lab, small_policy, 3)
    assert [small_policy.decode(ids).replace(" ", "") for ids in tokens] == list(lab.strings())
    assert {len(ids) for ids in tokens} == {2, 3} and {ids[-1] for ids in tokens} == set(small_policy.eos_ids)


def test_letters_without_a_token_are_refused(small_policy: LanguageModel) -> None:
    with pytest.raises(ConfigError, match=r"otherwise for \['i'.*use model=tiny, which has 8 letters"):
        spell(Lab(alphabet=9, length=2, modes=1, near=1), small_policy, 8)


def test_cut_strings_are_refused(small_policy: LanguageModel) -> None:
    with pytest.raises(ConfigError, match=r"data.max_tokens=5 cuts strings of 5 letters .* needs at least 6"):
        spell(Lab(), small_policy, 5)


@pytest.mark.parametrize("extra", ["ab", "\n"])
def test_a_second_spelling_is_refused(small_policy: LanguageModel, extra: str) -> None:
    """A token of two letters, as in any trained vocabulary, or one that an answer does not show."""
    words = ["<eos>", "<unk>", "a", "b", "c", "d", extra]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    other = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")
    twin = LanguageModel(small_policy.model, other, "compact")
    twin.eos_ids = frozenset({0})
    with pytest.raises(ConfigError, match="one token a letter; it is otherwise for"):
        spell(Lab(), twin, 8)


def test_two_ends_are_refused(small_policy: LanguageModel) -> None:
    small_policy.eos_ids = frozenset({2, 3})
    with pytest.raises(ConfigError, match="needs a model with one EOS token, and this one has 2"):
        spell(Lab(), small_policy, 8)


# ---- small things ------------------------------------------------------------------------------------------


def test_what_is_outside_completes_the_distribution() -> None:
    logp = torch.tensor([[0.5, 0.5], [0.25, 1.0]]).log()
    torch.testing.assert_close(with_outside(logp).exp(), torch.tensor([0.25, 0.25, 0.5]).double())
    full = torch.tensor([[0.5], [0.5 + 1e-6]]).log()
    found = with_outside(full).exp()
    assert found.sum().item() == pytest.approx(1, abs=1e-12)
    assert found[-1].item() == pytest.approx(LEAST_OUTSIDE, rel=1e-4)


@pytest.mark.parametrize("option", ["every_n_iterations", "prompts", "samples", "micro_batch_tokens", "beta"])
def test_numbers_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0"):
        ExactDivergence(NPGated(), **{option: 0})


def test_a_reward_may_look_at_the_length(small_policy: LanguageModel) -> None:
    """A penalty on the fourth of four tokens: strings of 3 letters and EOS lose it, shorter ones do not."""
    lab = Lab(alphabet=2, length=3, min_length=2, modes=1, near=0)
    tokens = spell(lab, small_policy, 4)
    plain = enumerate_answers(lab, small_policy, NPCode(), tokens, 0)
    cut = enumerate_answers(lab, small_policy, Overlong(NPCode(), limit=4, buffer=1), tokens, 0)
    assert (cut.rewards - plain.rewards).tolist() == [0.0] * 4 + [-1.0] * 8 + [0.0]
    assert plain.rewards[-1] == -2.5 and not plain.best[-1]
