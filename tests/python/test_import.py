"""Import in a fresh interpreter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ovq

PACKAGE = Path(ovq.__file__).absolute().parent


def run(code, path=PACKAGE.parent, **variables):
    environment = {**os.environ, "PYTHONPATH": str(path), **variables}
    environment = {name: value for name, value in environment.items() if value is not None}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


USE = "x = torch.randn(1, 9, 1, 4); print(ovq.ovq_attention(x, x, x, 1.0, chunk=2).shape[1])"


@pytest.mark.parametrize("imports", ["import torch, ovq", "import ovq, torch"])
def test_order_of_imports(imports):
    result = run(f"{imports}; {USE}")
    assert (result.returncode, result.stdout.strip()) == (0, "9"), result.stderr


def test_import_is_light():
    result = run("import time, torch; start = time.time(); import ovq; print(time.time() - start)")
    assert float(result.stdout) < 2.0  # mostly 0.1; machines are busy


def test_slow_kernels_of_openblas_are_told_once():
    tell = "import torch, ovq, ovq.state; print(torch.ops.ovq.blas_advice())"
    chosen = run(tell, OPENBLAS_CORETYPE="Prescott")  # by the user, who is not to be told
    assert (chosen.stdout.strip(), chosen.stderr) == ("", "")
    left = run(tell, OPENBLAS_CORETYPE=None)  # to OpenBLAS: told where it does not know the CPU
    advice = left.stdout.strip()
    assert left.stderr.count("RuntimeWarning: ovq: OpenBLAS does not recognise this CPU") == (1 if advice else 0)
    assert (advice in left.stderr) and ("OPENBLAS_CORETYPE=" in advice or not advice)


def test_without_the_library(tmp_path):
    (tmp_path / "ovq").mkdir()
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, tmp_path / "ovq")
    result = run("import ovq", tmp_path)
    assert result.returncode == 1 and "ImportError: ovq: " in result.stderr
    assert "libovq_models.so is missing" in result.stderr
    (tmp_path / "ovq" / "libovq_models.so").write_text("not a library")
    shutil.copy(PACKAGE / "torch_version.txt", tmp_path / "ovq")
    result = run("import ovq", tmp_path)
    assert result.returncode == 1 and "ImportError: ovq: cannot load" in result.stderr


def test_another_torch(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "ovq")
    (tmp_path / "ovq" / "torch_version.txt").write_text("1.2.0\n")
    result = run("import ovq", tmp_path)
    assert result.returncode == 1
    assert f"ImportError: ovq: built with torch 1.2.0, but this Python has torch {torch.__version__}; " in result.stderr
