import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def two_threads():
    os.environ.pop("OVQ_FORCE_REFERENCE", None)
    torch.set_num_threads(2)
