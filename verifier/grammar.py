"""Grammars beside the verifier: illegal candidates are pruned, legality is checked when accepting.

A grammar's state moves with the text. Candidates are tried on it and taken back, so a tree costs
one visit a node; the mask of legal tokens is asked for only where a token is chosen.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..drafters import ROOT, CandidateTree


class GrammarState(Protocol):
    """Where one request stands in its grammar.

    A state is for one request: it is moved by :meth:`advance` and taken back by :meth:`rollback`.
    """

    def advance(self, token_id: int) -> bool:
        """Go on by one token; return ``False`` and stay where the grammar does not allow it."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens that :meth:`advance` has taken."""
        ...

    def allowed(self) -> Tensor:
        """Return ``(vocab_size,)`` bool, the tokens that the grammar allows next.

        The end token is among them where the text may end.
        """
        ...


class IllegalTokenError(RuntimeError):
    """The target chose a token that the grammar forbids."""


def prune(tree: CandidateTree, state: GrammarState) -> CandidateTree:
    """Drop the nodes whose path the grammar forbids, with all that hangs from them.

    A tree that was drawn is left as it is: whether a drawn node stays must not depend on its own
    token. The target gives an illegal token no probability, so it is rejected in any case.

    Args:
        tree: candidates behind the text so far.
        state: stands behind the text so far, and does again afterwards.
    """
    if tree.num_nodes == 0 or tree.draft_probs is not None:
        return tree
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(child)
    legal: list[int] = []
    # Depth first without recursion: None closes the node that was opened last.
    pending: list[int | None] = list(reversed(children.get(ROOT, [])))
    while pending:
        node = pending.pop()
        if node is None:
            state.rollback(1)
        elif state.advance(int(tree.token_ids[node])):
            legal.append(node)
            pending.append(None)
            pending += reversed(children.get(node, []))
    return tree if len(legal) == tree.num_nodes else tree.keep(sorted(legal))


def mask_scores(scores: Tensor, state: GrammarState) -> Tensor:
    """Return ``(1, vocab_size)`` scores, minus infinity where the grammar forbids the token.

    Args:
        scores: ``(1, vocab_size)``; not changed.
        state: stands behind the text so far.

    Raises:
        ValueError: the grammar's vocabulary has another size.
    """
    allowed = state.allowed()
    if allowed.shape != scores.shape[1:]:
        raise ValueError(
            f"expected a grammar over {scores.shape[1]} tokens, got {tuple(allowed.shape)}"
        )
    return scores.masked_fill(~allowed.to(scores.device), float("-inf"))


def commit_token(state: GrammarState, token_id: int) -> None:
    """Move the state by a token that was emitted.

    Raises:
        IllegalTokenError: the grammar forbids it: another processor has forced it, or no token was
            legal at all.
    """
    if not state.advance(token_id):
        raise IllegalTokenError(
            f"expected a token that the grammar allows, got {token_id}: does another logits "
            f"processor force it, or does the grammar allow nothing here?"
        )
