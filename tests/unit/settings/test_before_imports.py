"""A mistake is answered before anything slow is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


HEAVY = "('torch', 'transformers', 'lightning', 'pytorch_lightning', 'vllm', 'peft', 'numpy')"


def python(code, cwd=ROOT):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=cwd, capture_output=True, text=True, check=False
    )


def test_settings_import_nothing_heavy():
    done = python(f"import sys, distmatch.settings; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("argument", ["--help", "algo=dmpoo", "sampler=hff", "resume=nowhere", "algo"])
def test_train_answers_before_anything_heavy_is_imported(argument, tmp_path):
    code = (
        "import atexit, runpy, sys\n"
        f"atexit.register(lambda: print('heavy', [m for m in {HEAVY} if m in sys.modules]))\n"
        f"sys.argv = ['train.py', {argument!r}]\n"
        f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
    )
    done = python(code, cwd=tmp_path)
    assert done.stdout.strip().endswith("heavy []"), done.stdout + done.stderr
    assert done.returncode == (0 if argument == "--help" else 2)
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
