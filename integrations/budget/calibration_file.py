"""Step times by context, batch and drafted tokens: a table, how to read it, its file.

The file is JSON (docs/calibrate.md names each field). ``freedraft calibrate`` writes it;
generation, the engines' adapters and the workbench read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray64 = npt.NDArray[np.float64]

FORMAT = "freedraft-calibration"
VERSION = 1
MEASURED = "measured"
DATA_SHEET = "computed from data sheets"
SOURCES = (MEASURED, DATA_SHEET)


class CalibrationError(ValueError):
    """A calibration file that is not what it should be."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What a target step costs on one machine with one model.

    Attributes:
        model: the model's id.
        engine: what ran it: ``transformers``, ``vllm``, ``llama-cpp``, or ``roofline``.
        device: the processor's name, with its threads or number of devices.
        source: :data:`MEASURED` or :data:`DATA_SHEET`.
        contexts: tokens in the cache at the measurements, increasing.
        batches: requests in the step, increasing.
        nodes: drafted tokens of each request, increasing, 0 first.
        seconds: ``(num_contexts, num_batches, num_nodes)`` wall time of a step, the drafting left
            out; never falls along any axis.
        draft_seconds: by drafter's name, ``(num_batches,)`` seconds that drafting for the whole
            batch takes a step.
        about: what else is known, such as the date, the versions and the number of repeats.
    """

    model: str
    engine: str
    device: str
    source: str
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    nodes: tuple[int, ...]
    seconds: FloatArray64
    draft_seconds: Mapping[str, FloatArray64] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the table.

        Raises:
            CalibrationError: axes that do not increase, another shape, times that are not positive
                or fall, an unknown source.
        """
        if self.source not in SOURCES:
            raise CalibrationError(f"expected a source among {SOURCES}, got {self.source!r}")
        for name, first in (("contexts", 0), ("batches", 1), ("nodes", 0)):
            axis = getattr(self, name)
            if not axis or axis[0] < first or any(b <= a for a, b in pairwise(axis)):
                raise CalibrationError(f"expected increasing {name} from {first} on, got {axis}")
        if self.nodes[0] != 0:
            raise CalibrationError(f"expected nodes to begin with 0, got {self.nodes}")
        shape = (len(self.contexts), len(self.batches), len(self.nodes))
        if self.seconds.shape != shape:
            raise CalibrationError(f"expected seconds of shape {shape}, got {self.seconds.shape}")
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise CalibrationError("expected seconds above 0, got others")
        if any((np.diff(self.seconds, axis=axis) < 0).any() for axis in range(3)):
            raise CalibrationError(
                "expected seconds that never fall along an axis, got some that do"
            )
        for name, times in self.draft_seconds.items():
            if times.shape != (len(self.batches),):
                raise CalibrationError(
                    f"expected {len(self.batches)} draft_seconds of {name}, got shape {times.shape}"
                )

    def step_seconds(
        self, num_requests: float, nodes: npt.ArrayLike, context: float | None = None
    ) -> FloatArray64:
        """Return the time of a step, read between the entries of the table.

        Linear between entries. Past the last number of nodes its slope goes on; past the largest
        batch the same tokens in all count as that batch with more nodes each.

        Args:
            num_requests: requests in the step, at least 1.
            nodes: any shape; drafted tokens of each request, fractions for an average.
            context: tokens in each request's cache; the middle entry when absent.

        Returns:
            Seconds, of the shape of ``nodes``.
        """
        if num_requests < 1:
            raise ValueError(f"expected num_requests >= 1, got {num_requests}")
        wanted = np.asarray(nodes, np.float64)
        if num_requests > self.batches[-1]:
            wanted = (1 + wanted) * (num_requests / self.batches[-1]) - 1
        table = _between(self.contexts, self.seconds, self._context(context))
        row = _between(self.batches, table, num_requests)
        inside = np.interp(wanted, self.nodes, row)
        if len(self.nodes) == 1:
            return np.asarray(inside)
        slope = (row[-1] - row[-2]) / (self.nodes[-1] - self.nodes[-2])
        return np.asarray(inside + slope * np.maximum(wanted - self.nodes[-1], 0))

    def pooled_seconds(
        self, num_requests: int, max_nodes: int, context: float | None = None
    ) -> FloatArray64:
        """Return ``(max_nodes + 1,)``: the time of a step with 0, 1, ... nodes in all.

        For engines that compute each token once, however it is spread over the requests.
        """
        return self.step_seconds(num_requests, np.arange(max_nodes + 1) / num_requests, context)

    def draft_time(self, drafter: str, num_requests: int) -> float:
        """Return the seconds a step that drafting for a batch takes; 0 where it is not known."""
        times = self.draft_seconds.get(drafter)
        return 0.0 if times is None else float(np.interp(num_requests, self.batches, times))

    def to_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "engine": self.engine,
            "device": self.device,
            "source": self.source,
            "contexts": list(self.contexts),
            "batches": list(self.batches),
            "nodes": list(self.nodes),
            "seconds": self.seconds.tolist(),
            "draft_seconds": {name: t.tolist() for name, t in self.draft_seconds.items()},
            "about": dict(self.about),
        }

    def save(self, path: Path | str) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def _context(self, context: float | None) -> float:
        return self.contexts[len(self.contexts) // 2] if context is None else context


def read_calibration(path: Path | str) -> Calibration:
    """Read a file that ``freedraft calibrate`` wrote.

    Raises:
        CalibrationError: it is not such a file, or of another version; the message names it.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return calibration_from_dict(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: expected JSON, got {error}") from error
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from error


def calibration_from_dict(content: object) -> Calibration:
    """Return the calibration that :meth:`Calibration.to_dict` made ``content`` of.

    Raises:
        CalibrationError: a field is missing or of another kind, or the table is not sound.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CalibrationError(f"expected a JSON object of format {FORMAT!r}, got another")
    if content.get("version") != VERSION:
        raise CalibrationError(f"expected version {VERSION}, got {content.get('version')!r}")
    try:
        contexts, batches, nodes = (
            tuple(map(int, content[axis])) for axis in ("contexts", "batches", "nodes")
        )
        return Calibration(
            str(content["model"]),
            str(content["engine"]),
            str(content["device"]),
            str(content["source"]),
            contexts,
            batches,
            nodes,
            np.array(content["seconds"], np.float64),
            {name: np.array(t, np.float64) for name, t in content["draft_seconds"].items()},
            dict(content["about"]),
        )
    except KeyError as error:
        raise CalibrationError(f"expected the field {error.args[0]!r}, got none") from error
    except (TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CalibrationError):
            raise
        raise CalibrationError(f"expected numbers and lists as documented, got {error}") from error


def _between(axis: tuple[int, ...], values: FloatArray64, at: float) -> FloatArray64:
    """Interpolate ``values`` along its first axis; the ends go on as they are."""
    position = float(np.interp(at, axis, np.arange(len(axis))))
    low = int(position)
    high = min(low + 1, len(axis) - 1)
    part = position - low
    return np.asarray(values[low] * (1 - part) + values[high] * part)
