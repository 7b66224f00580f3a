"""One thread and idle waiting: tiny models gain nothing from more, and two cores are shared."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads its runtime
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch

torch.set_num_threads(1)
