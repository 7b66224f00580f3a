"""How many tokens does a step emit under each lossless rule? Exact, by enumeration.

Chains of up to six drawn tokens and small trees, over random target and draft models: a draft model
is its target with noise added to the logits, so that the columns run from a near-perfect drafter to
a bad one.

    python benchmarks/acceptance_rules.py [--json results.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from acceptance_enumeration import (
    DRAWN,
    REPEATING,
    RandomModel,
    Rule,
    exact_outcome,
)

from freedraft.verifier.block_verification import verify_block
from freedraft.verifier.rejection import FloatArray64, verify_by_rejection

VOCAB_SIZE = 3
NUM_MODELS = 20
NOISES = (0.3, 1.0, 2.0)
PAIR_TREE = (-1, -1, 0, 0, 1, 1)  # two siblings, two below each


class NoisyModel(RandomModel):
    """A target with noise added to its logits: a drafter of a chosen quality."""

    def __init__(self, target: RandomModel, noise: float, seed: int) -> None:
        super().__init__(target.vocab_size, seed)
        self._target = target
        self._noise = noise
        self._noisy: dict[tuple[int, ...], FloatArray64] = {}

    def __call__(self, path: tuple[int, ...]) -> FloatArray64:
        if path not in self._noisy:
            rng = np.random.default_rng((self.seed, *(token + 1 for token in path)))
            row = (self._target(path) + 1e-3) * np.exp(
                self._noise * rng.normal(size=self.vocab_size)
            )
            self._noisy[path] = row / row.sum()
        return self._noisy[path]


def mean_length(rule: Rule, parents: tuple[int, ...], kind: str, noise: float) -> float:
    """Return the acceptance length, averaged over the random models."""
    lengths = []
    for seed in range(NUM_MODELS):
        target = RandomModel(VOCAB_SIZE, seed)
        draft = NoisyModel(target, noise, 1000 + seed)
        kinds = [kind] * len(parents)
        outcome = exact_outcome(rule, parents, kinds, target, draft, len(parents) + 1)
        assert outcome.error < 1e-12
        lengths.append(outcome.acceptance_length)
    return float(np.mean(lengths))


def main() -> None:
    """Print the tables and write them."""
    parser = argparse.ArgumentParser(description="acceptance length of each rule, exact")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    arguments = parser.parse_args()
    chains = []
    print("chain: noise, nodes, one by one, as a block, gain")
    for noise in NOISES:
        for num_nodes in (1, 2, 4, 6):
            chain = tuple(range(-1, num_nodes - 1))
            tokenwise = mean_length(verify_by_rejection, chain, DRAWN, noise)
            block = mean_length(verify_block, chain, DRAWN, noise)
            row = {
                "noise": noise,
                "nodes": num_nodes,
                "token_by_token": tokenwise,
                "block": block,
            }
            chains.append(row)
            gain = (block / tokenwise - 1) * 100
            print(f"{noise:4} {num_nodes:2} {tokenwise:7.4f} {block:7.4f} {gain:+6.2f} %")
    trees = []
    print("two siblings, two below each: noise, with replacement, without, gain")
    for noise in NOISES:
        repeating = mean_length(verify_by_rejection, PAIR_TREE, REPEATING, noise)
        without = mean_length(verify_by_rejection, PAIR_TREE, DRAWN, noise)
        trees.append({"noise": noise, "with_replacement": repeating, "without": without})
        gain = (without / repeating - 1) * 100
        print(f"{noise:4} {repeating:7.4f} {without:7.4f} {gain:+6.2f} %")
    if arguments.json:
        result = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "vocab_size": VOCAB_SIZE,
            "models": NUM_MODELS,
            "chains": chains,
            "trees": trees,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
