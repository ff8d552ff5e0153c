"""TensorBoardLog: what scalars do not show. Completions as text, solutions as pictures, histograms, settings.

The x-axis is the optimizer step everywhere; tokens and seconds are scalars of their own. Without a
TensorBoard logger the callback does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from distmatch.callbacks.rollout import RolloutCallback, Rollouts
from distmatch.callbacks.tables import figures
from distmatch.data.rollouts import Query
from distmatch.modules.policy import PolicyModule
from distmatch.rewards import Outcome
from distmatch.tasks.base import Task
from distmatch.tasks.render.solved import answer_of_key, draw_side_by_side, to_pixels

Setting = str | int | float | bool


class FiniteTensorBoardLogger(TensorBoardLogger):
    """Lightning's logger, without the scalars that are not finite: TensorBoard would draw them.

    A scalar is logged once a step: what comes again for the step of the last call is left out.

    Attributes:
        dropped: How many were not finite; also the scalar `log/dropped_scalars`, from the first one on.
    """

    dropped: int = 0
    _last_step: int | None = None
    _names: frozenset[str] = frozenset()  # of the last step

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log the finite ones that this step does not have yet."""
        before = self._names if step == self._last_step else frozenset()
        values = {name: float(value) for name, value in metrics.items() if name not in before}
        self._last_step, self._names = step, before | values.keys()
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.dropped += len(values) - len(finite)
        if values and self.dropped:
            finite["log/dropped_scalars"] = float(self.dropped)
        super().log_metrics(finite, step)


class TensorBoardLog(Callback):
    """Writes samples, pictures, histograms and, once at the end, settings with final figures; rank 0 only.

    It also has the scalars of an iteration written before its checkpoint, which Lightning does after it: a
    run that is killed in between and resumed has no gap. What is written for an iteration without a
    checkpoint is dropped on resume (`purge_step` of `distmatch.run.build`).

    Tags: `completions/<train or val>/<task>`, `solutions/<train or val>/<task>`, `distribution/reward` and
    `distribution/length`. Held-out samples show the same prompt in every evaluation.

    Args:
        every_n_iterations: Rhythm of training samples and pictures; 0 writes none. Histograms come with every
            iteration and held-out samples with every evaluation.
        max_completions: Completions of a group to show, best first.
        max_characters: Longer prompts and completions are cut in the middle.
    """

    def __init__(
        self, every_n_iterations: int = 10, max_completions: int = 8, max_characters: int = 4000
    ) -> None:
        self._every = every_n_iterations
        self._max_completions = max_completions
        self._max_characters = max_characters

    # ---- called by run.py ----------------------------------------------------------------------------------

    def log_final(self, trainer: Trainer, settings: Mapping[str, object], final: Mapping[str, float]) -> None:
        """Write settings with final figures for TensorBoard's HParams page; call it once, after training.

        Args:
            trainer: Of the run.
            settings: The config as nested dictionaries; names become dotted, as on the command line.
            final: Held-out figures `val/<name>`, logged as `final/<name>` of the whole benchmark.
        """
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                values = {k: v for k, v in figures(final).items() if "/" not in k and math.isfinite(v)}
                named = {f"final/{k}": v for k, v in values.items() if not k.endswith(("_low", "_high"))}
                # Both in one call: TensorBoard ignores figures of settings that were announced before.
                logger.log_hyperparams(flat_settings(settings), named, step=trainer.global_step)
                logger.experiment.flush()

    # ---- hooks ---------------------------------------------------------------------------------------------

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Histograms of this iteration and, at the rhythm, its samples; then its scalars, on the disk."""
        rollouts = _rollout_callback(trainer).latest
        for writer in _writers(trainer):
            step = trainer.global_step
            rewards = torch.tensor([outcome.reward for outcome in rollouts.outcomes])
            writer.add_histogram("distribution/reward", rewards, step)
            writer.add_histogram(
                "distribution/length", torch.tensor(rollouts.lengths, dtype=torch.float32), step
            )
            if self._every and trainer.current_epoch % self._every == 0:
                self._add_samples(writer, trainer, pl_module, rollouts, "train")
        self._log_scalars(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Samples of held-out prompts."""
        rollouts = _rollout_callback(trainer).latest_eval
        if trainer.sanity_checking or rollouts is None:
            return
        for writer in _writers(trainer):
            self._add_samples(writer, trainer, pl_module, rollouts, "val")

    # ---- steps ---------------------------------------------------------------------------------------------

    def _log_scalars(self, trainer: Trainer) -> None:
        """Hand over what Lightning logs after the checkpoint; the logger takes it only once."""
        trainer.logged_metrics.clear()  # of iterations before; the next line gathers those of this one
        scalars = {name: value for name, value in trainer.logged_metrics.items() if name != "step"}
        for logger in trainer.loggers:
            if isinstance(logger, FiniteTensorBoardLogger):
                logger.log_metrics(scalars, trainer.global_step)
                logger.save()

    def _add_samples(
        self, writer: SummaryWriter, trainer: Trainer, pl_module: PolicyModule, rollouts: Rollouts, where: str
    ) -> None:
        """The first group of every task as text, and its best solution as a picture."""
        task: Task = trainer.datamodule.task
        for query, rows in _first_of_each_task(rollouts):
            name, step = query.instance.task, trainer.global_step
            prompt = task.render(query.instance, pl_module.policy.style).text
            writer.add_text(
                f"completions/{where}/{name}", self._group_text(query, prompt, rollouts, rows), step
            )
            picture = best_picture(task, query, rollouts.outcomes[rows])
            if picture is not None:
                writer.add_image(f"solutions/{where}/{name}", picture, step)

    def _group_text(self, query: Query, prompt: str, rollouts: Rollouts, rows: slice) -> str:
        """A group as Markdown: the prompt, a table of its completions, then their texts, best first."""
        order = sorted(range(rows.start, rows.stop), key=lambda row: -rollouts.outcomes[row].reward)
        shown = order[: self._max_completions]
        outcomes = rollouts.outcomes[rows]
        distinct = len({o.verdict.key for o in outcomes if o.success})
        head = (
            f"**{query.instance.id}** · reference value **{outcomes[0].reference:g}** · {len(outcomes)} "
            f"completions, {sum(o.success for o in outcomes)} feasible, {distinct} distinct solutions"
        )
        table = [
            "| | reward | feasible | value | quality | tokens | why not |",
            "|---|---|---|---|---|---|---|",
        ]
        texts = []
        for number, row in enumerate(shown, 1):
            table.append(_table_row(number, rollouts.outcomes[row], rollouts.lengths[row]))
            cut = " · cut at the length limit" if rollouts.truncated[row] else ""
            texts.append(f"**{number}**{cut}\n\n{self._fenced(rollouts.texts[row])}")
        return "\n\n".join([head, "Prompt:", self._fenced(prompt), "\n".join(table), *texts])

    def _fenced(self, text: str) -> str:
        """As a code block, whatever the text holds: models write Markdown, HTML and fences of their own."""
        half = self._max_characters // 2
        if len(text) > 2 * half:
            text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
        fence = "~~~"
        while fence in text:
            fence += "~"
        return f"{fence}\n{text}\n{fence}"


def best_picture(task: Task, query: Query, outcomes: list[Outcome]) -> torch.Tensor | None:
    """The best solution of a group next to the reference, (3, height, width) uint8; None if there is none."""
    feasible = [outcome for outcome in outcomes if outcome.success]
    if not feasible:
        return None
    best = max(feasible, key=lambda outcome: outcome.quality)
    answer, reference = answer_of_key(best.verdict.key), task.reference(query.instance)
    if answer is None or reference.answer is None:  # a published reference may be a bare value
        return None
    proved = ", proved optimal" if reference.proved else ""
    figure = draw_side_by_side(
        query.instance,
        [
            (answer, f"best of {len(outcomes)}: {best.verdict.value:g}   (quality {best.quality:.2f})"),
            (reference.answer, f"reference: {reference.value:g}{proved}"),
        ],
    )
    return None if figure is None else torch.from_numpy(to_pixels(figure)).permute(2, 0, 1)


def flat_settings(settings: Mapping[str, object], prefix: str = "") -> dict[str, Setting]:
    """Nested settings under dotted names; lists become text, unset values are left out."""
    flat: dict[str, Setting] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{name}.")
        elif isinstance(value, str | int | float | bool):
            flat[name] = value
        elif value is not None:
            flat[name] = str(value)
    return flat


def _table_row(number: int, outcome: Outcome, length: int) -> str:
    verdict = outcome.verdict
    value = "" if verdict.value is None else f"{verdict.value:g}"
    feasible = "yes" if outcome.success else "no"
    reason = verdict.reason.replace("|", "\\|").replace("\n", " ")
    cells = (number, f"{outcome.reward:.3f}", feasible, value, f"{outcome.quality:.3f}", length, reason)
    return f"| {' | '.join(map(str, cells))} |"


def _first_of_each_task(rollouts: Rollouts) -> Iterator[tuple[Query, slice]]:
    seen: set[str] = set()
    for query, rows in rollouts.groups():
        if query.instance.task not in seen:
            seen.add(query.instance.task)
            yield query, rows


def _rollout_callback(trainer: Trainer) -> RolloutCallback:
    return next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))


def _writers(trainer: Trainer) -> list[SummaryWriter]:
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
