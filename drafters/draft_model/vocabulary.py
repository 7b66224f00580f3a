"""An exact map between the token ids of two vocabularies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..tree import IntArray

UNMAPPED = -1


class VocabularyMap:
    """Which id of the draft model means the same token as which id of the target.

    A token without a counterpart is never drafted, and where the text holds one, the draft model
    cannot read on: the request decodes without drafts from there.

    Attributes:
        target_size: ids of the target, the width of its logits.
        draft_size: ids of the draft model, the width of its logits.
        num_mapped: tokens that both know.
    """

    def __init__(self, to_draft: npt.ArrayLike, draft_size: int) -> None:
        """Take an explicit map.

        Args:
            to_draft: ``(target_size,)`` integers: of each id of the target the draft model's id of
                the same token, -1 where there is none.
            draft_size: ids of the draft model.

        Raises:
            ValueError: an id out of range, two tokens with one counterpart, or nothing in common.
        """
        table = np.asarray(to_draft)
        if table.ndim != 1 or table.dtype.kind not in "iu":
            raise ValueError(
                f"expected a map of one dimension of integers, got shape {table.shape} of "
                f"{table.dtype}"
            )
        mapped = table[table != UNMAPPED]
        if mapped.size == 0:
            raise ValueError("expected vocabularies with tokens in common, got none")
        if mapped.min() < 0 or mapped.max() >= draft_size:
            raise ValueError(
                f"expected ids of the draft model in 0..{draft_size - 1} (or -1), got "
                f"{int(mapped.min())}..{int(mapped.max())}"
            )
        ids, counts = np.unique(mapped, return_counts=True)
        if counts.max() > 1:
            raise ValueError(
                f"expected one token of the target for each of the draft model's, got several for "
                f"its id {int(ids[counts.argmax()])}: such a map is not exact"
            )
        self._to_draft: IntArray = table.astype(np.int32)
        self.target_size = int(table.size)
        self.draft_size = draft_size
        self.num_mapped = int(mapped.size)
        self._target_ids = torch.from_numpy(np.flatnonzero(table != UNMAPPED))
        self._draft_ids = torch.from_numpy(mapped.astype(np.int64))

    @classmethod
    def identity(cls, target_size: int, draft_size: int) -> VocabularyMap:
        """Return the map of one tokenizer's ids, for models whose logits have other widths.

        Some models pad their vocabulary; what only one of the two has is not a token.
        """
        table = np.arange(target_size)
        table[draft_size:] = UNMAPPED
        return cls(table, draft_size)

    @classmethod
    def from_tokenizers(
        cls,
        target: Mapping[str, int],
        draft: Mapping[str, int],
        target_size: int,
        draft_size: int,
    ) -> VocabularyMap:
        """Return the map of the tokens that two tokenizers spell alike.

        Args:
            target: what the target's ``tokenizer.get_vocab()`` gives.
            draft: the same of the draft model's.
            target_size: width of the target's logits.
            draft_size: width of the draft model's logits.

        Raises:
            ValueError: they have no token in common, or ids beyond the logits.
        """
        table = np.full(target_size, UNMAPPED)
        for token, index in target.items():
            other = draft.get(token, UNMAPPED)
            if index >= target_size or other >= draft_size:
                raise ValueError(
                    f"expected ids below {target_size} and {draft_size}, got {index} and {other} "
                    f"for the token {token!r}"
                )
            table[index] = other
        return cls(table, draft_size)

    @property
    def is_identity(self) -> bool:
        """Whether both have the same ids of the same width."""
        same = np.arange(self.target_size)
        return self.draft_size == self.target_size and bool((self._to_draft == same).all())

    def to_draft_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return the draft model's ids of tokens that :meth:`num_readable` has let pass."""
        ids: list[int] = self._to_draft[list(token_ids)].tolist()
        return ids

    def num_readable(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens the draft model can read before the first it cannot."""
        ids = np.asarray(token_ids, np.int64)
        inside = (ids >= 0) & (ids < self.target_size)
        readable = inside & (self._to_draft[np.where(inside, ids, 0)] != UNMAPPED)
        return int(ids.size if readable.all() else readable.argmin())

    def to_target_logits(self, logits: Tensor) -> Tensor:
        """Return ``(rows, target_size)`` logits over the target's ids.

        Tokens that the draft model does not know are impossible, and what the target does not know
        is left out before anything is drawn, so the distribution of the draw stays exact.

        Args:
            logits: ``(rows, draft_size)``.
        """
        if self.is_identity:
            return logits
        device = logits.device
        result = logits.new_full((logits.shape[0], self.target_size), -torch.inf)
        result[:, self._target_ids.to(device)] = logits[:, self._draft_ids.to(device)]
        return result
