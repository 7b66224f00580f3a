"""How many nodes a step verifies: the pooled choice, the step times behind it, what was learned."""

from .batch_end import step_values
from .calibration_file import Calibration, CalibrationError, read_calibration
from .choice import choose_num_nodes, pooled_choice
from .config import FLAT, PADDED, BudgetConfig
from .load import READY_MADE, load_calibration
from .pooled_budget import PooledBudget
from .regret import RegretAccount
from .step_costs import StepCosts
from .token_costs import TokenCosts

__all__ = [
    "FLAT",
    "PADDED",
    "READY_MADE",
    "BudgetConfig",
    "Calibration",
    "CalibrationError",
    "PooledBudget",
    "RegretAccount",
    "StepCosts",
    "TokenCosts",
    "choose_num_nodes",
    "load_calibration",
    "pooled_choice",
    "read_calibration",
    "step_values",
]
