"""Better demonstrations and given weights: what makes a stronger model out of the stage `warm_start`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from distmatch.data.demonstrations import Demonstrations, best_demonstration
from distmatch.data.warm_start import content_hash, dependencies, settings_hash, warm_start_folder
from distmatch.modules.language_model import LanguageModel
from distmatch.modules.tiny import load_tiny, shipped_folder
from distmatch.rewards import NPGated, score
from distmatch.settings.compose import Catalogue, compose
from distmatch.settings.errors import ConfigError
from distmatch.tasks.base import Task, instance_rng
from distmatch.tasks.mixture import Mixture
from distmatch.tasks.np.knapsack import Knapsack
from distmatch.tasks.np.tsp import TSP
from tests.runs import ROOT


def composed(*overrides: str) -> DictConfig:
    return compose(Catalogue(ROOT / "configs", "train", None), ["stage=warm_start", *overrides])


@pytest.mark.parametrize("task", [TSP(), Knapsack()], ids=["min", "max"])
def test_the_best_of_several_is_the_best_of_them(task: Task) -> None:
    suite = Mixture({task.name: task})
    for index in range(20):
        instance = suite.instance("train", index)
        rng = instance_rng("demonstration", 0, index)
        several = [task.demonstrate(instance, rng) for _ in range(6)]
        values = [task.verify(instance, text).value for text in several]
        known = [value for value in values if value is not None]
        chosen = best_demonstration(suite, instance, instance_rng("demonstration", 0, index), 6)
        assert chosen in several
        if known:
            assert task.verify(instance, chosen).value == (min if task.sense == "min" else max)(known)


def test_one_demonstration_is_the_task_s_own(small_policy: LanguageModel) -> None:
    task = Knapsack()
    text = task.demonstrate(task.instance("train", 3), instance_rng("demonstration", 0, 3))
    assert best_demonstration(task, task.instance("train", 3), instance_rng("demonstration", 0, 3), 1) == text
    plain, same = (Demonstrations(task, small_policy, 4, 2, 0, *more)[1] for more in ((), (1,)))
    assert torch.equal(plain.ids, same.ids)
    assert not torch.equal(plain.ids, Demonstrations(task, small_policy, 4, 2, 0, 8)[1].ids)
    with pytest.raises(ValueError, match="best_of=0"):
        Demonstrations(task, small_policy, 4, 2, 0, 0)


def test_more_to_choose_from_is_better() -> None:
    task, reward = TSP(), NPGated()
    means = []
    for count in (1, 8):
        instances = [task.instance("train", index) for index in range(60)]
        texts = [
            best_demonstration(task, i, instance_rng("demonstration", 0, n), count)
            for n, i in enumerate(instances)
        ]
        means.append(
            statistics.mean(score(task, i, t, reward).reward for i, t in zip(instances, texts, strict=True))
        )
    assert means[1] > means[0] + 0.1


def test_given_weights_count_by_their_content(tmp_path: Path) -> None:
    load_tiny().save(tmp_path / "copy")
    shipped = dependencies(composed("warm_start=strong"))
    copied = dependencies(composed("warm_start=strong", f"warm_start.start={tmp_path}/copy"))
    assert content_hash(tmp_path / "copy") == content_hash(shipped_folder())
    assert settings_hash(shipped) == settings_hash(copied)
    load_tiny("random").save(tmp_path / "other")
    other = composed("warm_start=strong", f"warm_start.start={tmp_path}/other")
    assert warm_start_folder(other) != warm_start_folder(composed("warm_start=strong"))
    assert warm_start_folder(composed("warm_start.best_of=2")) != warm_start_folder(composed())


def test_what_cannot_be_warm_started_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no weights"):
        dependencies(composed("warm_start=strong", f"warm_start.start={tmp_path}"))
    with pytest.raises(ConfigError, match=r"proposals\.models\.strong\.model"):
        dependencies(composed("model=hf"))
