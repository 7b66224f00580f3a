"""What a drafter that runs a model needs of it: trees that grow level by level on a cache.

Drafters know no engine. Whoever decodes lends them an object of this protocol;
:class:`freedraft.verifier.tree_growth.TreeGrowth` is the one for models of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..base import RequestId

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Tokens that one row appends in one forward.

    Attributes:
        token_ids: the tokens.
        parents: of each, a number that an earlier token of the row got since the last
            :meth:`TreeRunner.keep`, -1 for the end of the committed context. Also tokens of the
            same call may be parents of later ones.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]


NO_NODES = NewNodes((), ())


class TreeRunner(Protocol):
    """Several requests' texts in one cache, each with a tree that grows at its end.

    Attributes:
        request_ids: the request of each row.
        context_lengths: of each row, tokens in the cache, those of the tree left out.
    """

    request_ids: list[RequestId]

    @property
    def context_lengths(self) -> list[int]:
        """Of each row, tokens in the cache, those of the tree left out."""
        ...

    @property
    def model(self) -> nn.Module:
        """The model, for drafters that change its course."""
        ...

    @property
    def max_context(self) -> int:
        """The longest text that the model can take."""
        ...

    def grow(self, nodes: Sequence[NewNodes]) -> tuple[Tensor, int]:
        """Run new tokens of all rows in one forward.

        Args:
            nodes: one a row, in the rows' order.

        Returns:
            ``(num_rows, width, vocab_size)`` logits after each new token, padding included, and the
            number of the first of them: token i of the call is number ``first + i``.
        """
        ...

    def keep(self, numbers: Sequence[Sequence[int]]) -> None:
        """Make some of the tree's tokens part of the context, drop the others, begin a new tree.

        Args:
            numbers: of each row, increasing along one path from the context's end.
        """
        ...

    def rescore(self, recent: Sequence[Sequence[int]]) -> Tensor:
        """Run the context's last tokens once more, each by itself; only while there is no tree.

        Each sees the cached states of what stands before it, and its own new one: what a draft's
        first token is, for many places at once.

        Args:
            recent: of each row, the last tokens of its context.

        Returns:
            ``(num_rows, width, vocab_size)`` logits after each, padding included.
        """
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep the given rows, in that order."""
        ...

    def prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Run the rows' texts; only for a runner without rows.

        Args:
            texts: of each row, at least one token.
        """
        ...
