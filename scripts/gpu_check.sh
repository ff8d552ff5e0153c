#!/usr/bin/env bash
# Does sampler=vllm work on this GPU, and how fast? Prints one table; all options: scripts/gpu_check.sh --help.
# Needs a CUDA card and: python3 -m venv .venv && .venv/bin/pip install -e '.[vllm]'
# PYTHON=/path/to/python chooses another environment.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" -m benchmarks.gpu_check "$@"
