"""The requests of a simulation from recorded traffic: their lengths, and their drafts' fate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from ...drafters import Drafter
from ...drafters.base import as_token_ids
from ...drafters.tree import IntArray
from ..logs import LogReader, LogRequest
from ..replay.encoder import Encoder
from .acceptance import AcceptanceTable, tabulate

TokenPair = tuple[IntArray, IntArray]


def read_requests(
    files: Iterable[Path], encoder: Encoder, most: int, skip_broken: bool = False
) -> list[TokenPair]:
    """Return the first requests of logs as prompts and responses in tokens.

    Args:
        files: in any format that :class:`~..logs.LogReader` knows.
        encoder: of the tokenizer.
        most: how many.
        skip_broken: pass over broken lines.

    Raises:
        LogError: a log cannot be read.
        ValueError: there is no request, or a text cannot be encoded.
    """
    pairs = list(islice(_pairs(files, encoder, skip_broken), most))
    if not pairs:
        raise ValueError("expected at least one request with a prompt and a response, got none")
    return pairs


def tabulate_requests(
    pairs: Iterable[TokenPair],
    drafter: Drafter,
    *,
    max_nodes: int,
    chains: bool,
    on_request: Callable[[], None] = lambda: None,
) -> list[AcceptanceTable]:
    """Return what one drafter, kept over all requests, would propose for each.

    Args:
        pairs: prompts and responses.
        drafter: it learns from each for the next.
        max_nodes: of the tables.
        chains: verify chains, as engines without trees do.
        on_request: called after each request, for a progress bar.
    """
    tables = []
    for index, (prompt, response) in enumerate(pairs):
        tables.append(
            tabulate(
                drafter, prompt, response, max_nodes=max_nodes, request_id=index, chains=chains
            )
        )
        on_request()
    return tables


def _pairs(files: Iterable[Path], encoder: Encoder, skip_broken: bool) -> Iterator[TokenPair]:
    for path in files:
        for request in LogReader(path, skip_broken=skip_broken):
            pair = _encode(request, encoder)
            if pair[0].size and pair[1].size:
                yield pair


def _encode(request: LogRequest, encoder: Encoder) -> TokenPair:
    prompt = request.prompt
    if isinstance(prompt, tuple):
        prompt = encoder.render(prompt)
    return _token_ids(prompt, encoder), _token_ids(request.response, encoder)


def _token_ids(text: str | IntArray, encoder: Encoder) -> IntArray:
    return as_token_ids(encoder.encode([text])[0]) if isinstance(text, str) else text
