"""What every divergence of DMPO asks for when the policy is losing a good answer.

    python -m benchmarks.divergence_gradients [--out divergence_gradients.png] [--target 0.5] [--group 8]

One answer of a group has the share `target` in p and the share q in the policy's distribution; the others
share what is left equally, in both. Left: the gradient of the divergence in that q, other shares held. It is
what the paper bounds: MSE stays at (2/G)|q - p|, JS grows like log(1/q), forward KL like 1/q, log MSE like
log(1/q)/q. Right: the gradient in phi, the score that q is the softmax of, which is what training sees. There
the chain rule multiplies by q: MSE and JS vanish and give the answer up, forward KL keeps pulling with p, log
MSE pulls the harder the less is left. MSE is the steadiest, and its price is that it brings nothing back.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from distmatch.losses.dmpo import DIVERGENCES, Divergence

NAMES = {"mse": "MSE (paper)", "js": "JS", "forward_kl": "forward KL", "log_mse": "log MSE (ours)"}
STYLES = {"mse": "-", "js": "--", "forward_kl": "-.", "log_mse": ":"}
PANELS = {
    "by_q": (
        "in q, other shares held: what the paper bounds",
        r"$|\partial L\,/\,\partial q|$",
        (1e-3, 1e10),
    ),
    "by_phi": ("in the score: what training sees", r"$|\partial L\,/\,\partial \varphi|$", (1e-10, 1e2)),
}


def gradients(divergence: Divergence, shares: Tensor, target: float, group: int) -> dict[str, Tensor]:
    """Absolute gradients of the first answer of a group, at each q.

    Args:
        divergence: One of `DIVERGENCES`.
        shares: The first answer's q, (n,) float64 in (0, 1).
        target: Its p.
        group: G, at least 2.

    Returns:
        `by_q` and `by_phi`, (n,) each.
    """
    p, q = (spread(first, group) for first in (torch.full_like(shares, target), shares))
    live = torch.ones_like(p, dtype=torch.bool)
    q.requires_grad_()
    (by_q,) = torch.autograd.grad(divergence(p.log(), q.log(), live).sum(), q)
    phi = q.detach().log().requires_grad_()
    (by_phi,) = torch.autograd.grad(divergence(p.log(), phi.log_softmax(dim=1), live).sum(), phi)
    return {"by_q": by_q[:, 0].abs(), "by_phi": by_phi[:, 0].abs()}


def spread(first: Tensor, group: int) -> Tensor:
    """Distributions with `first` (n,) on the first answer and the rest shared equally, (n, G)."""
    rest = (1 - first) / (group - 1)
    return torch.cat([first[:, None], rest[:, None].expand(-1, group - 1)], dim=1)


def draw(file: Path, target: float, group: int) -> None:
    """Write the picture, in the format that the file's ending names."""
    shares = torch.logspace(-8, math.log10(0.5), 400, dtype=torch.float64)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"Gradient at an answer with p = {target:g} in a group of {group}, as its q goes to 0")
    panels = figure.subplots(1, 2)
    for axes, (kind, (title, label, limits)) in zip(panels, PANELS.items(), strict=True):
        for name, divergence in DIVERGENCES.items():
            slope = gradients(divergence, shares, target, group)[kind]
            axes.loglog(shares, slope, STYLES[name], linewidth=2, label=NAMES[name])
        axes.axvline(target, color="tab:gray", linewidth=1)
        axes.set(title=title, xlabel="q", ylabel=label, ylim=limits)
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("divergence_gradients.png"))
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--group", type=int, default=8)
    arguments = parser.parse_args()
    if not 0 < arguments.target < 1 or arguments.group < 2:
        parser.error("--target must be between 0 and 1, and --group at least 2")
    if arguments.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error(f"--out {arguments.out} must end in .png, .svg or .pdf")
    if not arguments.out.parent.is_dir():
        parser.error(f"--out: there is no folder {arguments.out.parent}")
    draw(arguments.out, arguments.target, arguments.group)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
