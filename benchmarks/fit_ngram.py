"""Which weights make the n-gram drafter's votes most likely? Fits ``drafters/ngram/_weights.py``.

Replays the first two thirds of each trace with the drafter as it is, looks at a sample of its
steps, and follows the text down: at each token, which places read which token, and which one came.
The tables are then fitted by maximum likelihood, every file counting the same; one that is given
twice counts twice. The tables in use come from edit, edit_block (three times), agent, rag, revise
and chat with SmolLM2's tokenizer.

    python benchmarks/fit_ngram.py TOKENIZER TRACE.jsonl...

Prints the tables as source text. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from numba import njit
from transformers import AutoTokenizer

from freedraft.drafters.ngram import NgramDrafter
from freedraft.drafters.ngram import _place_kernels as placer
from freedraft.drafters.ngram import _pool_kernels as pool
from freedraft.drafters.ngram import _search_kernels as finder
from freedraft.drafters.ngram import _weights as tables

MAX_NODES = 16
STEPS_A_FILE = 24_000
ROUNDS = 150
LENGTH_CLASSES = len(tables.LENGTH_STOPS)
SHAPES = {
    "_VOTE": (tables.KINDS, tables.NEARS, LENGTH_CLASSES),
    "_RANK": (tables.REGIONS, tables.RANKS, tables.KINDS),
    "_DEPTH": (tables.KINDS, tables.DEPTH_CLASSES),
    "_AGE": (tables.REGIONS, tables.AGES),
    "_DISTANCE": (tables.DISTANCES,),
    "_DETOUR": (tables.DISTANCES,),
    "_ESCAPE": (tables.DEPTH_CLASSES, LENGTH_CLASSES),
    "_WIDTH": (tables.WIDTHS,),
    "_RECENT": (tables.RECENTS,),
}
PLACE_TABLES = ("_VOTE", "_RANK", "_DEPTH", "_AGE", "_DISTANCE", "_DETOUR")
ESCAPE_TABLES = ("_ESCAPE", "_WIDTH", "_RECENT")
STARTS = dict(
    zip(SHAPES, np.cumsum([0, *(int(np.prod(s)) for s in SHAPES.values())]), strict=False)
)
NUM_PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES.values())


@njit
def read_ahead(arena, places, pages, page_bits, num_tokens, out):
    """Write the next tokens behind each place, -1 where they end; ``out`` is ``(places, n)``."""
    for place in range(out.shape[0]):
        at = places[place, finder.AT]
        for i in range(out.shape[1]):
            out[place, i] = -1
            if at < 0:
                continue
            out[place, i] = arena[pool.HEADER_SIZE + at]
            page = at >> page_bits
            if (at & ((1 << page_bits) - 1)) + 1 < pages[page, pool.USED]:
                at += 1
            elif pages[page, pool.NEXT] >= 0:
                at = pages[page, pool.NEXT] << page_bits
            else:
                at = places[place, finder.RESTART]


def depth_class(depth: int) -> int:
    """Return the class of a depth in the tree."""
    return min(depth, 1) + (depth > 1) + (depth > 3) + (depth > 7)


class Recorder:
    """Collects votes (places at a node) and decisions (nodes on the true path)."""

    def __init__(self, drafter: NgramDrafter) -> None:
        """Cut the drafter's arena into the views that are read."""
        self.drafter = drafter
        config, arena = drafter.config, drafter._arena
        self.page_bits = config.page_size.bit_length() - 1
        first = int(finder._offsets(arena)[3])
        stop = first + config.max_places * pool.PLACE_FIELDS
        self.places = arena[first:stop].reshape(-1, pool.PLACE_FIELDS)
        self.room = int(finder._offsets(arena)[4])
        self.pages = drafter._pages
        self.length_class = np.searchsorted(tables.LENGTH_STOPS, np.arange(65), side="right")
        self.votes: list[np.ndarray] = []
        self.decisions: list[list[int]] = []
        self.owners: list[np.ndarray] = []
        self.hits: list[np.ndarray] = []
        ones = np.ones(tables.NUM_WEIGHTS)
        self.probes = []
        for start, stop in (
            (tables.RANK, tables.DEPTHS),
            (tables.AGE, tables.DISTANCE),
            (tables.DISTANCE, tables.DETOUR),
            (tables.DETOUR, tables.ESCAPE),
        ):
            probe = ones.copy()
            probe[start:stop] = np.arange(1, stop - start + 1)
            self.probes.append(probe)

    def record(self, request_id: int, truth: np.ndarray) -> None:
        """Look at one step: ``truth`` holds the tokens that came."""
        drafter = self.drafter
        row = drafter._row_of[request_id]
        saved = drafter._rows[row].copy()
        weights = []
        for probe in self.probes:
            drafter._rows[row] = saved
            floats = np.concatenate((probe, np.zeros(drafter._floats.size - probe.size)))
            drafter._arena[self.room] = row
            finder.follow_chains(drafter._arena, 1)
            finder.keep_places(drafter._arena, 0)
            placer.weigh_places(drafter._arena, floats, row)
            found = int(drafter._arena[pool.FOUND])
            places_stop = tables.PLACES + found
            weights.append(floats[tables.PLACES : places_stop].astype(np.int64) - 1)
        drafter._rows[row] = saved
        places = self.places[:found]
        ahead = np.empty((found, MAX_NODES), np.int64)
        read_ahead(drafter._arena, places, self.pages, self.page_bits, MAX_NODES, ahead)
        recent = 5 * _recent_class(saved[pool.ACCEPTED])
        recent += _recent_class(saved[pool.ACCEPTED_BEFORE])
        alive = np.ones(found, np.bool_)
        near = (places[:, finder.VOTES] // tables.LENGTHS) % (tables.KINDS * tables.NEARS)
        for depth, token in enumerate(truth[:MAX_NODES]):
            voters = np.flatnonzero(alive & (ahead[:, depth] >= 0))
            if not voters.size:
                return
            kind = places[voters, finder.KIND]
            match = np.minimum(places[voters, finder.MATCH] + depth, tables.LENGTHS - 1)
            vote = near[voters] * LENGTH_CLASSES + self.length_class[match]
            classes = (
                vote,
                weights[0][voters],
                kind * tables.DEPTH_CLASSES + depth_class(depth),
                weights[1][voters],
                weights[2][voters],
                weights[3][voters],
            )
            self.votes.append(
                np.stack([STARTS[n] + c for n, c in zip(PLACE_TABLES, classes, strict=True)], 1)
            )
            longest = int(match[kind == finder.PLAIN].max(initial=0))
            width = min(len(set(ahead[voters, depth].tolist())), tables.WIDTHS - 1)
            escape = depth_class(depth) * LENGTH_CLASSES + self.length_class[longest]
            choices = (escape, width, recent)
            self.decisions.append(
                [int(STARTS[n] + c) for n, c in zip(ESCAPE_TABLES, choices, strict=True)]
            )
            self.owners.append(np.full(voters.size, len(self.decisions) - 1))
            self.hits.append(ahead[voters, depth] == token)
            alive &= ahead[:, depth] == token


def _recent_class(accepted: int) -> int:
    return min(int(accepted), 1) + int(accepted > 1) + int(accepted > 4) + int(accepted > 15)


def replay(requests: list[tuple[np.ndarray, np.ndarray]], share: float) -> Recorder:
    """Replay requests in order, and record a share of the steps."""
    drafter = NgramDrafter()
    recorder = Recorder(drafter)
    random = np.random.default_rng(0)
    for request_id, (prompt, response) in enumerate(requests):
        drafter.start(request_id, prompt)
        position = 0
        while position < response.size:
            if random.random() < share:
                recorder.record(request_id, response[position:])
            (tree,) = drafter.propose([request_id], MAX_NODES, MAX_NODES)
            children = tree.children()
            node, accepted = -1, 0
            while position + accepted < response.size:
                node = children.get(node, {}).get(int(response[position + accepted]), -1)
                if node < 0:
                    break
                accepted += 1
            drafter.extend(request_id, response[position : position + accepted + 1])
            position += accepted + 1
        drafter.stop(request_id)
    return recorder


def fit(recorders: list[Recorder]) -> np.ndarray:
    """Return the ``(NUM_PARAMETERS,)`` logarithms that make what came most likely."""
    start = np.zeros(NUM_PARAMETERS, np.float32)
    middles = np.log(np.maximum(0.5, np.array([0, *tables.LENGTH_STOPS[:-1]])))
    start[: STARTS["_RANK"]] = np.tile(2 * middles, tables.KINDS * tables.NEARS)
    anchor = torch.tensor(start)
    parameters = anchor.clone().requires_grad_()
    data = [
        (
            torch.tensor(np.concatenate(r.votes)),
            torch.tensor(np.concatenate(r.owners)),
            torch.tensor(np.concatenate(r.hits).astype(np.float32)),
            torch.tensor(r.decisions),
        )
        for r in recorders
    ]
    optimizer = torch.optim.Adam([parameters], lr=0.15)
    for step in range(ROUNDS):
        for group in optimizer.param_groups:
            group["lr"] = 0.15 * (1 - step / ROUNDS) + 0.005
        optimizer.zero_grad()
        loss = 2e-5 * ((parameters - anchor) ** 2).sum()
        for votes, owners, hits, decisions in data:
            weights = torch.exp(parameters[votes].sum(1))
            zeros = torch.zeros(len(decisions))
            right = zeros.index_add(0, owners, weights * hits)
            escape = torch.exp(parameters[decisions].sum(1))
            total = zeros.index_add(0, owners, weights) + escape
            came = torch.where(zeros.index_add(0, owners, hits) > 0, right, escape)
            loss = loss - (torch.log(came) - torch.log(total)).mean()
        loss.backward()
        optimizer.step()
    return parameters.detach().numpy()


def source(parameters: np.ndarray) -> str:
    """Return the tables as they stand in the module."""
    text = ""
    for name, shape in SHAPES.items():
        values = parameters[STARTS[name] : STARTS[name] + int(np.prod(shape))]
        text += f"# fmt: off\n{name} = (  # {shape}\n"
        line = "   "
        for value in values:
            item = f" {value + 0.0:.2f},"
            if len(line) + len(item) > 98:
                text += line + "\n"
                line = "   "
            line += item
        text += line + "\n)\n# fmt: on\n"
    return text


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("traces", nargs="+", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)

    recorders: list[Recorder] = []
    for path, times in Counter(arguments.traces).items():
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        rows = rows[: 2 * len(rows) // 3]
        requests = [(encode(row["prompt"]), encode(row["response"])) for row in rows]
        tokens = sum(response.size for _, response in requests)
        recorders += [replay(requests, min(1.0, 4 * STEPS_A_FILE / tokens))] * times
    print(source(fit(recorders)))


if __name__ == "__main__":
    main()
