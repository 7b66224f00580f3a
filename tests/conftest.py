"""One thread and idle waiting: tiny models gain nothing from more, and two cores are shared."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads its runtime
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported

# Time limits would make tests depend on the machine; in CI the same examples are tried each time.
settings.register_profile("everywhere", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=2000,
    stateful_step_count=50,
    suppress_health_check=HealthCheck,
)
settings.load_profile("everywhere")
