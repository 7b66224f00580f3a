"""The contract between a drafter and whatever decodes: six verbs, one answer type, some options."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .tree import CandidateTree, FloatArray, IntArray

if TYPE_CHECKING:
    from .model_drafting import TreeRunner

FloatArray64 = npt.NDArray[np.float64]
RequestId = Hashable
_INT32 = np.dtype(np.int32)
DEFAULT_NAMESPACE = ""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the target said about a tree that it verified.

    Attributes:
        token_ids: ``(num_emitted,)`` int32, what the step committed, the recovered or bonus token
            last.
        accepted: ``(num_accepted,)`` int32, indices of the tree's nodes on the accepted path.
        choices: ``(num_nodes + 1,)`` int32, the target's most likely token after the root (entry
            0) and after each node (entry i + 1); -1 where the target was not asked.
        top_ids: optional ``(num_nodes + 1, k)`` int32, the target's k most likely tokens there, the
            best first; for a drafter that :class:`WantsTopIds`.
        top_logprobs: ``(num_nodes + 1, k)`` float32, their log-probabilities under the raw logits;
            present where ``top_ids`` is.
    """

    token_ids: IntArray
    accepted: IntArray
    choices: IntArray
    top_ids: IntArray | None = None
    top_logprobs: FloatArray | None = None


@runtime_checkable
class Drafter(Protocol):
    """A source of candidate trees.

    A drafter never changes the output, only the speed. Nothing here raises on an unknown request
    id mid-flight: such a request has an empty tree, and its other calls do nothing. Ids that are
    negative never match and are never proposed.
    """

    @property
    def name(self) -> str:
        """The name that statistics and the command line use."""
        ...

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Begin a request; one of the same id that still runs is stopped first.

        Args:
            request_id: any hashable, unique among the running requests.
            prompt_ids: ``(prompt_length,)`` integers.
            namespace: requests learn from earlier ones of the same namespace only.

        Raises:
            ValueError: ``prompt_ids`` is not one-dimensional or not made of integers.
        """
        ...

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Append committed tokens, also while speculation is off.

        Args:
            request_id: a started request.
            token_ids: ``(num_new,)`` integers.
        """
        ...

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        """Return one tree a request, each of at most ``max_nodes`` nodes, ``max_depth`` deep."""
        ...

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        """Learn from what the target said about ``tree``; called before the step's ``extend``."""
        ...

    def truncate(self, request_id: RequestId, length: int) -> None:
        """Forget the request's tokens from position ``length`` (prompt included) on."""
        ...

    def stop(self, request_id: RequestId) -> None:
        """End the request and release what it held."""
        ...


@runtime_checkable
class ExtendsInBatches(Protocol):
    """A drafter that takes the tokens of a step in one call: it costs less than one a request."""

    def extend_batch(
        self, request_ids: Sequence[RequestId], token_ids: Sequence[npt.ArrayLike]
    ) -> None:
        """Append committed tokens of several requests, as :meth:`Drafter.extend` does, in order.

        Args:
            request_ids: the requests, each once; for unknown ones nothing happens.
            token_ids: of each request, ``(num_new,)`` integers.

        Raises:
            ValueError: not as many texts as requests, or one that ``extend`` would refuse; then
                nothing is appended.
        """
        ...


@runtime_checkable
class TakesPrediction(Protocol):
    """A drafter that can be told what a request's output will probably be."""

    def set_prediction(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        """Take ``(length,)`` token ids as the probable output of a started request."""
        ...


@runtime_checkable
class WantsTopIds(Protocol):
    """A drafter that learns from the target's most likely tokens at every verified node.

    Finding them costs a pass over all logits, so that they are in the feedback only when asked for.
    """

    @property
    def num_top_ids(self) -> int:
        """How many of them, k; 0 for none."""
        ...


@runtime_checkable
class UsesTarget(Protocol):
    """A drafter that runs the target itself, or parts of it."""

    def lend_target(self, request_ids: Sequence[RequestId], target: TreeRunner) -> None:
        """Take the target that decodes these started requests, until each of them stops.

        Args:
            request_ids: the requests.
            target: its rows name their requests; it must be without a tree between two calls of
                :meth:`Drafter.propose`.
        """
        ...


@runtime_checkable
class TakesVocabSize(Protocol):
    """A drafter that must know the size of the target's vocabulary, for distributions over it."""

    def set_vocab_size(self, vocab_size: int) -> None:
        """Learn the size; called before the first request."""


@runtime_checkable
class SendsProbes(Protocol):
    """A drafter that has nodes verified to hear what the target says there, now, for later drafts.

    A probe is a node like any other: where it holds the target's token, it is accepted. But nobody
    expects that of it, so its probability is 0 and no budget for candidates would keep it.
    """

    @property
    def num_probes(self) -> int:
        """The most probes that a request may send; 0 where none will come."""
        ...

    def add_probes(
        self,
        request_ids: Sequence[RequestId],
        trees: Sequence[CandidateTree],
        max_nodes: int,
        max_depths: Sequence[int],
        costs: FloatArray64 | None,
    ) -> list[CandidateTree]:
        """Return the trees with probes behind their own nodes, which stay as they are.

        Args:
            request_ids: the requests of the step.
            trees: what will be verified of each one's proposal.
            max_nodes: most nodes of a tree, probes included.
            max_depths: the deepest node that each request has room for.
            costs: ``(max_nodes + 1,)`` relative time of the step if each request had 0, 1, ...
                nodes, or ``None`` where nobody counts the cost.
        """
        ...


def as_token_ids(values: npt.ArrayLike) -> IntArray:
    """Return ``values`` as a contiguous one-dimensional int32 array that kernels take.

    An array that is one already is returned as it is; kernels refuse one that is read-only, so that
    it is copied.

    Raises:
        ValueError: another number of dimensions, another kind of number, or values beyond int32.
    """
    array = np.asarray(values)
    if array.dtype is _INT32 and array.ndim == 1 and array.flags.carray:
        return array
    if array.ndim != 1:
        raise ValueError(f"expected token ids of one dimension, got shape {array.shape}")
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype == np.int32:
        return np.ascontiguousarray(array) if array.flags.writeable else array.copy()
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected token ids of an integer dtype, got {array.dtype}")
    token_ids = array.astype(np.int32, order="C")
    if (token_ids != array).any():
        raise ValueError(f"expected token ids within int32, got {array.min()}..{array.max()}")
    return token_ids


def check_budget(max_nodes: int, max_depth: int) -> None:
    """Check the limits of a :meth:`Drafter.propose` call.

    Raises:
        ValueError: a limit is negative.
    """
    if max_nodes < 0 or max_depth < 0:
        raise ValueError(
            f"expected max_nodes >= 0 and max_depth >= 0, got {max_nodes} and {max_depth}"
        )


def check_texts(request_ids: Sequence[RequestId], token_ids: Sequence[npt.ArrayLike]) -> None:
    """Check that an :meth:`ExtendsInBatches.extend_batch` call has one text a request.

    Raises:
        ValueError: it has not.
    """
    if len(token_ids) != len(request_ids):
        raise ValueError(
            f"expected tokens of {len(request_ids)} requests, got {len(token_ids)} texts"
        )


def check_length(length: int) -> None:
    """Check the length of a :meth:`Drafter.truncate` call.

    Raises:
        ValueError: it is negative.
    """
    if length < 0:
        raise ValueError(f"expected length >= 0, got {length}")
