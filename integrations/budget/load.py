"""A calibration by name or file."""

from __future__ import annotations

from pathlib import Path

from .calibration_file import Calibration, CalibrationError, read_calibration
from .data_sheets import DEVICES, data_sheet_calibration

READY_MADE = tuple(DEVICES)
"""Names of curves that are computed from data sheets."""


def load_calibration(source: str | Path | Calibration) -> Calibration:
    """Return a calibration.

    Args:
        source: one of :data:`READY_MADE`, the path of a file that ``freedraft calibrate`` wrote, or
            a calibration, which is returned as it is.

    Raises:
        CalibrationError: there is no such file or name, or the file is not what it should be.
    """
    if isinstance(source, Calibration):
        return source
    if str(source) in READY_MADE:
        return data_sheet_calibration(str(source))
    try:
        return read_calibration(source)
    except OSError as error:
        raise CalibrationError(
            f"expected a calibration file or one of {', '.join(READY_MADE)}, got {str(source)!r}: "
            f"{error.strerror or error}"
        ) from error
