import os

# The oneDNN of Debian's torch 1.13 dies of an illegal instruction on CPUs with AMX, in products of bfloat16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


def pytest_configure(config):
    """A warning is a failure, but for those that torch gives of itself."""
    config.addinivalue_line("filterwarnings", "error")
    for told in ("`torch.nn.utils.weight_norm` is deprecated", "`torch.jit.script` is not supported"):
        config.addinivalue_line("filterwarnings", f"ignore:{told}:FutureWarning")


@pytest.fixture(autouse=True, scope="session")
def two_threads():
    os.environ.pop("OVQ_PATH", None)
    torch.set_num_threads(2)
