"""The one data type: a small tree of candidate tokens with the probability of each path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

ROOT = -1
"""Parent of the nodes that follow the last committed token directly."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTree:
    """Candidate continuations of a request's last committed token, merged into one tree.

    The root itself (the last committed token) is not a node. Nodes are stored flat, parent before
    child. A chain is a tree in which each node hangs from the one before it.

    Attributes:
        token_ids: ``(num_nodes,)`` int32, not negative.
        parents: ``(num_nodes,)`` int32, index of the parent node, -1 for a child of the root.
        probs: ``(num_nodes,)`` float32, the estimated probability that the target emits the whole
            path from the root down to the node; never grows going down.
        draft_probs: optional ``(num_nodes, vocab_size)`` float32: the distribution q that the node
            was sampled from, for stochastic drafts only.
    """

    token_ids: IntArray
    parents: IntArray
    probs: FloatArray
    draft_probs: FloatArray | None = None

    @classmethod
    def empty(cls) -> CandidateTree:
        """Return the tree without nodes: nothing is drafted, the step decodes plainly."""
        return _EMPTY

    @classmethod
    def from_arrays(
        cls,
        token_ids: npt.ArrayLike,
        parents: npt.ArrayLike,
        probs: npt.ArrayLike | None = None,
        draft_probs: npt.ArrayLike | None = None,
    ) -> CandidateTree:
        """Build a tree from arrays that come from outside, and check it.

        Args:
            token_ids: ``(num_nodes,)`` integers.
            parents: ``(num_nodes,)`` integers, -1 at a root's child, parent before child.
            probs: ``(num_nodes,)`` path probabilities; 1 everywhere when absent.
            draft_probs: ``(num_nodes, vocab_size)`` distributions, or absent.

        Raises:
            ValueError: what :meth:`validate` names, or an array that is not made of integers.
        """
        tokens = _as_int32("token_ids", token_ids)
        tree = cls(
            tokens,
            _as_int32("parents", parents),
            np.ones(tokens.shape, np.float32) if probs is None else np.asarray(probs, np.float32),
            None if draft_probs is None else np.asarray(draft_probs, np.float32),
        )
        tree.validate()
        return tree

    @classmethod
    def from_chain(
        cls, token_ids: npt.ArrayLike, probs: npt.ArrayLike | None = None
    ) -> CandidateTree:
        """Build a chain: each token follows the one before it.

        Args:
            token_ids: ``(num_nodes,)`` integers.
            probs: ``(num_nodes,)`` path probabilities; 1 everywhere when absent.
        """
        tokens = _as_int32("token_ids", token_ids)
        return cls.from_arrays(tokens, np.arange(-1, tokens.size - 1, dtype=np.int32), probs)

    @classmethod
    def from_chains(
        cls,
        chains: Iterable[Sequence[int]],
        probs: Iterable[Sequence[float]] | None = None,
    ) -> CandidateTree:
        """Build a tree from several chains; equal paths become one node.

        A shared node keeps the largest of its probabilities.

        Args:
            chains: token ids of each chain, from the root down.
            probs: path probabilities of each chain, of the same lengths; 1 when absent.

        Raises:
            ValueError: ``probs`` and ``chains`` differ in number or length.
        """
        chain_list = [list(chain) for chain in chains]
        prob_list = (
            [[1.0] * len(c) for c in chain_list] if probs is None else list(map(list, probs))
        )
        if [len(chain) for chain in chain_list] != [len(row) for row in prob_list]:
            raise ValueError(
                f"expected probs of the chains' lengths {[len(c) for c in chain_list]}, "
                f"got lengths {[len(row) for row in prob_list]}"
            )
        return cls.merge([cls.from_chain(c, p) for c, p in zip(chain_list, prob_list, strict=True)])

    @classmethod
    def merge(cls, trees: Iterable[CandidateTree]) -> CandidateTree:
        """Merge trees of the same root: nodes with the same path become one.

        A merged node keeps the largest probability. Trees with ``draft_probs`` cannot be merged:
        their siblings were sampled in an order that a merge would lose.

        Raises:
            ValueError: a tree carries ``draft_probs``.
        """
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[float] = []
        index_of: dict[tuple[int, int], int] = {}
        for tree in trees:
            if tree.draft_probs is not None:
                raise ValueError("expected trees without draft_probs, got a stochastic draft")
            placed: list[int] = []
            for token, parent, prob in zip(
                tree.token_ids.tolist(), tree.parents.tolist(), tree.probs.tolist(), strict=True
            ):
                key = (placed[parent] if parent >= 0 else ROOT, token)
                node = index_of.setdefault(key, len(tokens))
                if node == len(tokens):
                    tokens.append(token)
                    parents.append(key[0])
                    probs.append(prob)
                else:
                    probs[node] = max(probs[node], prob)
                placed.append(node)
        return cls(
            np.array(tokens, np.int32), np.array(parents, np.int32), np.array(probs, np.float32)
        )

    def validate(self, vocab_size: int | None = None) -> None:
        """Check the structure, and the ids against a vocabulary when its size is given.

        Raises:
            ValueError: shapes differ, a token id is negative or outside the vocabulary, a parent
                does not stand before its child, a probability is not in [0, 1] or grows going
                down, or two siblings hold the same token.
        """
        num_nodes = self.token_ids.size
        for name in ("token_ids", "parents", "probs"):
            shape = getattr(self, name).shape
            if shape != (num_nodes,):
                raise ValueError(f"expected {name} of shape ({num_nodes},), got {shape}")
        if self.draft_probs is not None and self.draft_probs.shape[:1] != (num_nodes,):
            raise ValueError(
                f"expected draft_probs with {num_nodes} rows, got shape {self.draft_probs.shape}"
            )
        if num_nodes == 0 or self._is_plainly_valid(vocab_size):
            return
        if self.token_ids.min() < 0:
            raise ValueError(f"expected token ids >= 0, got {int(self.token_ids.min())}")
        if vocab_size is not None and self.token_ids.max() >= vocab_size:
            raise ValueError(
                f"expected token ids below the vocabulary size {vocab_size}, "
                f"got {int(self.token_ids.max())}"
            )
        self._validate_parents()
        self._validate_probs()

    def _is_plainly_valid(self, vocab_size: int | None) -> bool:
        """Return whether one pass finds nothing to complain about; cheap for trees of a step."""
        if self.draft_probs is not None:
            return False
        top = float("inf") if vocab_size is None else vocab_size
        probs = self.probs.tolist()
        edges: set[tuple[int, int]] = set()
        rows = zip(self.parents.tolist(), self.token_ids.tolist(), probs, strict=True)
        for node, (parent, token, prob) in enumerate(rows):
            if not (ROOT <= parent < node and 0 <= token < top):
                return False
            if not 0 <= prob <= (1 if parent == ROOT else probs[parent]):
                return False
            edges.add((parent, token))
        return len(edges) == len(probs)

    def _validate_parents(self) -> None:
        nodes = np.arange(self.num_nodes)
        wrong = np.flatnonzero((self.parents < ROOT) | (self.parents >= nodes))
        if wrong.size:
            node = int(wrong[0])
            raise ValueError(
                f"expected node {node}'s parent in -1..{node - 1} (parent before child), "
                f"got {int(self.parents[node])}"
            )
        if self.draft_probs is not None:
            return  # sampled siblings may repeat a token when drawn with replacement
        edges = list(zip(self.parents.tolist(), self.token_ids.tolist(), strict=True))
        if len(set(edges)) < len(edges):
            twice = next(edge for node, edge in enumerate(edges) if edge in edges[:node])
            raise ValueError(f"expected distinct siblings, got token {twice[1]} twice")

    def _validate_probs(self) -> None:
        if not ((self.probs >= 0) & (self.probs <= 1)).all():
            raise ValueError(f"expected probs in [0, 1], got {self.probs.tolist()}")
        above = np.where(self.parents >= 0, self.probs[self.parents], np.float32(1))
        if (self.probs > above).any():
            node = int(np.flatnonzero(self.probs > above)[0])
            raise ValueError(
                f"expected probs that never grow going down, got {float(self.probs[node]):g} at "
                f"node {node} below {float(above[node]):g}"
            )

    @property
    def num_nodes(self) -> int:
        """Number of candidate tokens, K."""
        return int(self.token_ids.size)

    @property
    def is_chain(self) -> bool:
        """Whether each node hangs from the one before it."""
        return bool(self.parents.tolist() == list(range(-1, self.num_nodes - 1)))

    def depths(self) -> IntArray:
        """Return ``(num_nodes,)`` int32: 1 for a child of the root, one more each level down."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return np.array(depths, np.int32)

    def ancestor_mask(self) -> BoolArray:
        """Return ``(num_nodes, num_nodes)`` bool: row i marks node i and its ancestors."""
        mask = np.eye(self.num_nodes, dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                mask[node] |= mask[parent]
        return mask

    def path(self, node: int) -> list[int]:
        """Return the node indices from the root's child down to ``node``."""
        indices: list[int] = []
        parents = self.parents.tolist()
        while node != ROOT:
            indices.append(node)
            node = parents[node]
        return indices[::-1]

    def children(self) -> dict[int, dict[int, int]]:
        """Return for each node with children (-1 for the root) a map of token id to child."""
        children: dict[int, dict[int, int]] = {}
        edges = zip(self.parents.tolist(), self.token_ids.tolist(), strict=True)
        for node, (parent, token) in enumerate(edges):
            children.setdefault(parent, {}).setdefault(token, node)
        return children

    def keep(self, nodes: npt.ArrayLike) -> CandidateTree:
        """Return the tree of the given nodes; each node's parent must be among them.

        Args:
            nodes: increasing node indices.
        """
        kept = np.asarray(nodes, np.int64)
        new_index = np.full(self.num_nodes + 1, ROOT, np.int32)  # the last entry serves the root
        new_index[kept] = np.arange(kept.size, dtype=np.int32)
        return CandidateTree(
            self.token_ids[kept],
            new_index[self.parents[kept]],
            self.probs[kept],
            None if self.draft_probs is None else self.draft_probs[kept],
        )

    def cut(self, max_nodes: int, max_depth: int | None = None) -> CandidateTree:
        """Keep the ``max_nodes`` most probable nodes not deeper than ``max_depth``.

        Since probabilities never grow going down and a parent stands before its child, the kept
        part is connected. Ties keep the earlier node.
        """
        if max_nodes <= 0 or (max_depth is not None and max_depth <= 0):
            return _EMPTY
        if self.num_nodes <= max_nodes and (max_depth is None or self.num_nodes <= max_depth):
            return self
        candidates = np.arange(self.num_nodes)
        if max_depth is not None:
            candidates = candidates[self.depths() <= max_depth]
        if candidates.size > max_nodes:
            order = np.argsort(-self.probs[candidates], kind="stable")
            candidates = np.sort(candidates[order[:max_nodes]])
        return self if candidates.size == self.num_nodes else self.keep(candidates)

    def filter(self, allowed: Callable[[int], bool]) -> CandidateTree:
        """Drop the nodes whose token is not allowed, with all that hangs from them."""
        kept: list[int] = []
        dropped = np.zeros(self.num_nodes + 1, np.bool_)  # the last entry serves the root
        edges = zip(self.parents.tolist(), self.token_ids.tolist(), strict=True)
        for node, (parent, token) in enumerate(edges):
            dropped[node] = dropped[parent] or not allowed(token)
            if not dropped[node]:
                kept.append(node)
        return self if len(kept) == self.num_nodes else self.keep(kept)

    def best_chain(self) -> CandidateTree:
        """Return the root-to-leaf path with the largest expected number of accepted tokens.

        That number is the sum of the path probabilities of its nodes: what an engine without tree
        attention gains from the tree.
        """
        if self.num_nodes == 0 or self.is_chain:
            return self
        gains: list[float] = self.probs.tolist()
        for node, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                gains[node] += gains[parent]
        return self.keep(self.path(gains.index(max(gains))))

    def draw(self, text_of: Callable[[int], str] = str) -> str:
        """Draw the tree as lines of text, one node a line with its path probability.

        Args:
            text_of: how a token id is written; its number by default.
        """
        children = self.children()
        lines: list[str] = []

        def visit(node: int, indent: str) -> None:
            below = list(children.get(node, {}).values())
            for rank, child in enumerate(below):
                last = rank == len(below) - 1
                label = text_of(int(self.token_ids[child]))
                lines.append(f"{indent}{'└─' if last else '├─'} {label} {self.probs[child]:.2f}")
                visit(child, indent + ("   " if last else "│  "))

        visit(ROOT, "")
        return "\n".join(lines)


def accepted_path(tree: CandidateTree, target_ids: IntArray) -> IntArray:
    """Return the nodes of the longest path from the root that spells the start of ``target_ids``.

    Args:
        tree: distinct siblings, parent before child.
        target_ids: ``(num_left,)`` int32, what the target emits next.

    Returns:
        ``(num_accepted,)`` int32 node indices, from the root's child down.
    """
    path: list[int] = []
    tip = ROOT
    targets = target_ids[: tree.num_nodes].tolist()
    edges = zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)
    # one pass is enough: a child stands after its parent
    for node, (parent, token) in enumerate(edges):
        if parent == tip and len(path) < len(targets) and token == targets[len(path)]:
            path.append(node)
            tip = node
    return np.array(path, np.int32)


def _as_int32(name: str, values: npt.ArrayLike) -> IntArray:
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(array.shape, np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected {name} of an integer dtype, got {array.dtype}")
    limits = np.iinfo(np.int32)
    if array.min() < limits.min or array.max() > limits.max:
        raise ValueError(f"expected {name} within int32, got {array.min()}..{array.max()}")
    return array.astype(np.int32)


_EMPTY = CandidateTree(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
