"""Leaves a request alone for a few steps at a time while none of its drafts is worth verifying."""

from __future__ import annotations

from collections.abc import Iterable

from ..drafters.tree import IntArray
from .seen_grams import SeenGrams

_AWAKE = 2  # proposals in a row that came to nothing before the first nap
_LONGEST = 8  # steps from one proposal to the next
_REMEMBERED = 1 << 15  # tokens of the first text
_OFTENER = 8  # times, while the text repeats itself


class RequestNaps:
    """Decides at which of its steps a request is followed and asked for a draft at all.

    Following several tokens at once costs about as much as following one, so a request is asked
    less often the longer its drafts have brought nothing: once in 2, 4 and 8 steps. While the
    text's end has stood before (:class:`SeenGrams`) it is asked eight times as often. Requests that
    nap wake in the same steps, since asking several is hardly dearer than asking one.
    """

    def __init__(self, token_ids: IntArray) -> None:
        """Start awake.

        Args:
            token_ids: ``(num_tokens,)`` int32, the text so far.
        """
        self._seen = SeenGrams(token_ids[-_REMEMBERED:])
        self._num_idle = 0  # proposals in a row that came to nothing

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take in a step's tokens."""
        self._seen.append(token_ids)

    def sleep(self, step: int) -> bool:
        """Return whether the request is left alone at this step.

        Args:
            step: the engine's, the same for all its requests.
        """
        num_idle = self._num_idle - _AWAKE
        if num_idle < 0:
            return False
        period = min(2 << min(num_idle, _LONGEST), _LONGEST)
        if self._seen.repeat:
            period //= _OFTENER
        return period > 1 and step % period != 0

    def wake(self, num_drafted: int) -> None:
        """Note that the request was asked and how much of its proposal is verified."""
        self._num_idle = 0 if num_drafted else self._num_idle + 1
