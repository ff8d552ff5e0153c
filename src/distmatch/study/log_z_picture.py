"""The picture of stage `proposals`: effective samples, variance against N, scan over beta, estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distmatch.data.proposal_labels import LEAST_ESS, PromptLabel

COLOURS = {"usable": "tab:green", "weak proposal": "tab:red", "tilt too strong": "tab:orange"}
MOST_INTERVALS = 200
"""More prompts are thinned out evenly: their bars would merge."""

BEYOND = 1.5
"""Nats that are shown below the lowest and above the highest estimate."""


def draw(
    file: Path,
    title: str,
    labels: Sequence[PromptLabel],
    untilted: Sequence[float],
    scanned: Sequence[Mapping[str, float]],
    against: Sequence[Mapping[str, float]],
) -> None:
    """Write the picture.

    Args:
        file: A `.png`.
        title: Names partition function and beta.
        labels: Of all prompts.
        untilted: Their shares of effective samples at beta = 0.
        scanned: Points of `distmatch.study.log_z_report.scan_point`, by rising beta.
        against: Points of `variance_against_samples`, by rising N.
    """
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _draw_ess(axes[0, 0], labels, untilted)
    _draw_variance(axes[0, 1], against)
    _draw_scan(axes[1, 0], scanned)
    _draw_intervals(axes[1, 1], labels)
    figure.savefig(file, dpi=110)


def _draw_ess(axes: Axes, labels: Sequence[PromptLabel], untilted: Sequence[float]) -> None:
    bins = [i / 40 for i in range(41)]
    axes.hist(untilted, bins, alpha=0.5, label="at beta = 0", color="tab:gray")
    axes.hist([label.ess_share for label in labels], bins, alpha=0.7, label="at this beta", color="tab:blue")
    least = LEAST_ESS / labels[0].samples
    axes.axvline(least, color="tab:red", linestyle="--", label=f"{LEAST_ESS:g} effective samples")
    axes.set(title="Effective samples", xlabel="ESS / N", ylabel="prompts", xlim=(0, 1))
    axes.legend()


def _draw_variance(axes: Axes, against: Sequence[Mapping[str, float]]) -> None:
    sizes = [point["samples"] for point in against]
    values = [point["variance"] for point in against]
    axes.loglog(sizes[:-1], values[:-1], "o-", color="tab:blue", label="subsampled")
    axes.loglog(sizes[-1:], values[-1:], "s", color="tab:orange", label="delta method, all N")
    axes.loglog(
        sizes, [values[-1] * sizes[-1] / size for size in sizes], ":", color="tab:gray", label="1 / N"
    )
    axes.set(
        title="Label variance against N", xlabel="answers a prompt, N", ylabel="mean variance, nats squared"
    )
    axes.legend()


def _draw_scan(axes: Axes, scanned: Sequence[Mapping[str, float]]) -> None:
    betas = [point["beta"] for point in scanned]
    band = [[point[key] for point in scanned] for key in ("variance_low", "variance_high")]
    axes.fill_between(betas, *band, alpha=0.25, color="tab:blue", label="delta method, 10 to 90 %")
    axes.plot(betas, [point["variance"] for point in scanned], "o-", color="tab:blue", label="median")
    halves = [point["variance_of_halves"] for point in scanned]
    axes.plot(betas, halves, "s--", color="tab:red", label="between halves, mean")
    axes.set(title="Scan over beta", xlabel="beta", ylabel="variance of log Z, nats squared", yscale="log")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)
    right = axes.twinx()
    right.plot(betas, [point["usable"] for point in scanned], "^-", color="tab:green", alpha=0.6)
    right.set_ylabel("share of sound prompts", color="tab:green")
    right.set_ylim(-0.02, 1.02)


def _draw_intervals(axes: Axes, labels: Sequence[PromptLabel]) -> None:
    ordered = sorted(labels, key=lambda label: label.log_z)
    shown = ordered[:: -(-len(ordered) // MOST_INTERVALS)]
    for verdict, colour in COLOURS.items():
        chosen = [(place, label) for place, label in enumerate(shown) if label.verdict == verdict]
        if not chosen:
            continue
        places = [place for place, _ in chosen]
        ends = [[label.low for _, label in chosen], [label.high for _, label in chosen]]
        axes.vlines(places, *ends, color=colour, linewidth=1)
        axes.plot(places, [label.log_z for _, label in chosen], ".", color=colour, label=verdict)
    # The interval of a hopeless label may be endless; the others should still be seen.
    limits = (shown[0].log_z - BEYOND, shown[-1].log_z + BEYOND)
    axes.set(title="log Z with 95 % intervals", xlabel="prompts by log Z", ylabel="nats", ylim=limits)
    axes.legend(loc="lower right")
