"""Measuring what a target step costs, engine by engine."""

from .measure import CalibrationPlan, MeasurementError, Progress, StepTimer, measure_steps, tabulate

__all__ = [
    "CalibrationPlan",
    "MeasurementError",
    "Progress",
    "StepTimer",
    "measure_steps",
    "tabulate",
]
