"""Does `sampler=vllm` work on this machine's GPU, and how fast: for models of 0.5, 1.5 and 7 billion weights.

For each size, with full weights and under LoRA, in a process of its own:
- the engine starts, trains three iterations, and its log-probabilities are compared with the trainer's after
  every sync (the canary of training runs);
- sleep levels 1 and 2 go through the same;
- faults are planted, and the canary must catch each.

    python -m benchmarks.gpu_check                        # random weights: nothing is downloaded
    python -m benchmarks.gpu_check 0.5B --hub             # the hub's weights where it can be reached
    python -m benchmarks.gpu_check tiny --device cpu      # tries the script itself, on a CPU engine
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu_cases import SIZES, Clock, build, iterate, prompts_of
from distmatch.callbacks.sync_check import SyncCheck, SyncError
from distmatch.modules.language_model import LanguageModel
from distmatch.sampling.base import SamplingParams
from distmatch.sampling.vllm import VLLMSampler
from distmatch.sampling.vllm_memory import Needs, estimate
from distmatch.settings.errors import ConfigError
from tests.vllm import faults

COLUMNS = (
    "start s",
    "tokens/s",
    "sync s",
    "sync %",
    "sample %",
    "update %",
    "gap mean",
    "gap limit",
    "checks",
)
FAULTS = {
    False: (faults.SyncsOnce, faults.KeepsCache, faults.OwnTemperature, faults.ShiftsByOne),
    True: (faults.SyncsOnce, faults.KeepsCache, faults.PushesBase),
}
"""By whether there is an adapter."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 0 if no check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", help=f"of: {', '.join(SIZES)}; default: all but tiny")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--memory-fraction", type=float, default=0.3, help="the engine's share of the GPU")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--hub", action="store_true", help="weights from the hub instead of random ones")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--case", choices=("full", "lora"), help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    sizes = asked.sizes or [name for name in SIZES if name != "tiny"]
    unknown = [name for name in sizes if name not in SIZES]
    if unknown:
        parser.error(f"sizes are {', '.join(SIZES)}, not {unknown[0]}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU here: --device cpu with the size tiny tries the script", file=sys.stderr)
        return 2
    if asked.case:
        asked.out.write_text(json.dumps(measure(asked, sizes[0], lora=asked.case == "lora")))
        return 0
    return report(
        asked, {(name, case): alone(asked, name, case) for name in sizes for case in ("full", "lora")}
    )


def alone(asked: argparse.Namespace, size: str, case: str) -> dict[str, object]:
    """One case in a process of its own: what it takes is given back, and its crash is its own."""
    print(f"{size}, {case} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", size, "--case", case, "--out", str(file)]
        command += ["--device", asked.device, "--memory-fraction", str(asked.memory_fraction)]
        command += ["--iterations", str(asked.iterations), *(["--hub"] if asked.hub else [])]
        done = subprocess.run(command, check=False)
        if file.exists():
            return json.loads(file.read_text())
    return {"failed": f"the process ended with status {done.returncode}; its last words are above"}


def measure(asked: argparse.Namespace, size: str, *, lora: bool) -> dict[str, object]:
    """All figures of one case, or why there are none."""
    device = torch.device("cuda", 0) if asked.device == "cuda" else torch.device("cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = SIZES[size]
    try:
        policy = build(shape, device, dtype, lora=lora, hub=asked.hub)
    except OSError as error:
        print(f"the hub gives no {shape.hub} ({error}); random weights instead", file=sys.stderr)
        policy = build(shape, device, dtype, lora=lora, hub=False)
    except torch.OutOfMemoryError:
        return {"skipped": "the model alone does not fit into this GPU's memory"}
    refusal = short_of_memory(policy, asked.memory_fraction)
    if refusal:
        return {"skipped": refusal}
    try:
        figures = timed(policy, asked, size, lora=lora)
        figures["checks"] = checks(policy, asked, size, lora=lora)
    except torch.OutOfMemoryError:
        return {"skipped": "out of memory while training: lower --memory-fraction"}
    return figures


def short_of_memory(policy: LanguageModel, fraction: float) -> str:
    """The sentence of the sampler's own estimate, if it says no."""
    if policy.device.type != "cuda":
        return ""
    total = torch.cuda.get_device_properties(policy.device).total_memory
    needs = Needs.of(policy, next(policy.parameters()).dtype)
    return estimate(needs, total, fraction, policy.window).refusal


def timed(policy: LanguageModel, asked: argparse.Namespace, size: str, *, lora: bool) -> dict[str, object]:
    """Speed, the share of each phase, and the distance between engine and trainer."""
    sampler = VLLMSampler(memory_fraction=asked.memory_fraction)
    began = time.perf_counter()
    sampler.setup(policy)
    started = time.perf_counter() - began
    check, shape, lr = canary(size), SIZES[size], 1e-4 if lora else 1e-5
    check(policy, sampler)
    iterate(policy, sampler, shape, Clock(), iterations=1, lr=lr)  # kernels are chosen in the first round
    clock = Clock()
    tokens = iterate(policy, sampler, shape, clock, iterations=asked.iterations, lr=lr)
    sampler.sync(policy)
    seen = check(policy, sampler)
    sampler.close()
    whole = sum(clock.seconds.values())
    shares = {f"{phase} %": 100 * seconds / whole for phase, seconds in clock.seconds.items()}
    speed = {"tokens/s": tokens / clock.seconds["sample"], "sync s": clock.seconds["sync"] / asked.iterations}
    return {"start s": started, **speed, **shares, "gap mean": seen.gap, "gap limit": seen.limit}


def canary(size: str) -> SyncCheck:
    """Fixed prompts that are longer than a block of the engine's cache."""
    return SyncCheck(prompts_of(SIZES[size])[:2], SamplingParams(n=2, max_tokens=16))


def checks(policy: LanguageModel, asked: argparse.Namespace, size: str, *, lora: bool) -> str:
    """Sleep levels keep the canary silent; every planted fault wakes it. Words for the table."""
    wrong = []
    for level in (1, 2):
        sampler = VLLMSampler(memory_fraction=asked.memory_fraction, sleep_level=level)
        if not silent(policy, sampler, size):
            wrong.append(f"sleep level {level}")
    for fault in FAULTS[lora]:
        if silent(policy, fault(memory_fraction=asked.memory_fraction), size):
            wrong.append(f"{fault.__name__} not seen")
    return "failed: " + ", ".join(wrong) if wrong else "passed"


def silent(policy: LanguageModel, sampler: VLLMSampler, size: str) -> bool:
    """Whether the canary has nothing to say while the policy changes twice; the changes are taken back."""
    kept = {name: weight.detach().clone() for name, weight in policy.trainable().items()}
    check = canary(size)
    try:
        sampler.setup(policy)
        for step in range(3):
            check(policy, sampler)
            shake(policy, seed=step)
            sampler.sync(policy)
    except SyncError as error:
        print(f"{type(sampler).__name__}: {error.cause}", file=sys.stderr)
        return False
    finally:
        sampler.close()
        with torch.no_grad():
            for name, weight in policy.trainable().items():
                weight.copy_(kept[name])
    return True


@torch.no_grad()
def shake(policy: LanguageModel, seed: int) -> None:
    """Change all that trains enough for an engine with older weights to be far off."""
    rng = torch.Generator(policy.device).manual_seed(seed)
    for weight in policy.trainable().values():
        weight.add_(0.02 * torch.randn(weight.shape, generator=rng, device=policy.device, dtype=weight.dtype))


def report(asked: argparse.Namespace, found: dict[tuple[str, str], dict[str, object]]) -> int:
    """Print the table, keep the figures; 1 if anything failed."""
    name = torch.cuda.get_device_name(0) if asked.device == "cuda" else "CPU"
    print(f"\n{name}, torch {torch.__version__}, {'hub' if asked.hub else 'random'} weights")
    print("| model | weights | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for (size, case), figures in found.items():
        said = figures.get("skipped") or figures.get("failed")
        cells = [str(said)] if said else [shown(figures[column]) for column in COLUMNS]
        print(f"| {size} | {case} | " + " | ".join(cells) + " |")
    if asked.out:
        asked.out.write_text(json.dumps({f"{s} {c}": f for (s, c), f in found.items()}, indent=1) + "\n")
    bad = [f for f in found.values() if "failed" in f or str(f.get("checks", "")).startswith("failed")]
    return int(bool(bad))


def shown(value: object) -> str:
    """A cell of the table."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"error: {error}")
