"""Which columns of a step stay in the cache, as index tensors that all layers share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class KeptColumns:
    """The root and the accepted path of each row.

    Attributes:
        lengths: tokens of each row before the step.
        new_lengths: the same after it.
        num_slots: slots in use before the step, in layers that keep every token.
        width: columns of the step.
        are_moved: whether what stays has been moved in place already, in layers that tell their
            states; the rest of what keeping means is left to do.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        num_slots: int,
        width: int,
        columns: Sequence[Sequence[int]],
        are_moved: bool = False,
    ) -> None:
        """Take the plan in.

        Args:
            lengths: tokens of each row before the step, at most ``num_slots``.
            num_slots: slots in use before the step, in layers that keep every token.
            width: columns of the step.
            columns: of each row, the columns that stay, increasing along the path, root first.
            are_moved: see above.
        """
        self.lengths = list(lengths)
        self.new_lengths = [n + len(path) for n, path in zip(lengths, columns, strict=True)]
        self.num_slots = num_slots
        self.width = width
        self.are_moved = are_moved
        self._columns = [np.asarray(path, np.int64) for path in columns]
        self._moves: dict[torch.device, Tensor] = {}
        self._windows: dict[tuple[torch.device, int, int], Tensor] = {}

    @property
    def num_dropped(self) -> int:
        """Slots at the end that no row uses any more."""
        return self.num_slots + self.width - max(self.new_lengths)

    @property
    def keeps_all(self) -> bool:
        """Whether every column of every row stays where it is, as in a step without drafts."""
        return min(self.new_lengths) == self.num_slots + self.width

    def columns(self, row: int, device: torch.device) -> Tensor:
        """Return ``(num_kept,)`` int64, the columns that stay of one row."""
        return torch.from_numpy(self._columns[row]).to(device)

    def moves(self, device: torch.device) -> Tensor:
        """Return ``(3, num_moves)`` int64: row, source slot and target slot of what must move.

        Rows stay left-aligned, so a row's kept columns move down to its own end.
        """
        if device not in self._moves:
            parts = []
            for row, (length, path) in enumerate(zip(self.lengths, self._columns, strict=True)):
                sources = self.num_slots + path
                targets = length + np.arange(path.size)
                moved = sources != targets
                parts.append(
                    np.stack([np.full(int(moved.sum()), row), sources[moved], targets[moved]])
                )
            self._moves[device] = torch.from_numpy(np.concatenate(parts, 1)).to(device)
        return self._moves[device]

    def window(self, slots: int, size: int, device: torch.device) -> Tensor:
        """Return ``(num_rows, num_left)`` int64: the sources of each row's last tokens.

        For layers that keep the last tokens only, right-aligned: the last slot is each row's last
        token. A row with fewer tokens has any source in front.

        Args:
            slots: slots in use before the step; the step's columns follow them.
            size: most tokens that stay.
            device: where the result is put.
        """
        key = (device, slots, size)
        if key not in self._windows:
            left = min(size, max(self.new_lengths))
            sources = np.zeros((len(self.lengths), left), np.int64)
            for row, (length, path) in enumerate(zip(self.lengths, self._columns, strict=True)):
                old = np.arange(slots - min(length, slots), slots)
                both = np.concatenate([old, slots + path])[-left:] if left else old[:0]
                sources[row, left - both.size :] = both
            self._windows[key] = torch.from_numpy(sources).to(device)
        return self._windows[key]
