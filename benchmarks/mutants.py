"""Does the exact enumeration catch wrong acceptance rules? Breaks the rules one way at a time.

Each mutant is a rule's module with one piece of text replaced. It counts as killed when, on the
tree shapes below, an output distribution is off by more than the tests allow, the acceptance
length falls below what the right rule has, or the rule breaks.

    python benchmarks/mutants.py [--json results.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT_FOLDER = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT_FOLDER / "tests"))

from acceptance_enumeration import (  # noqa: E402
    CHOSEN,
    DRAWN,
    REPEATING,
    RandomModel,
    Rule,
    exact_outcome,
    tree_shapes,
)

TOLERANCE = 1e-12
REJECTION = "rejection"
BLOCK = "block_verification"


@dataclass(frozen=True)
class Mutant:
    """One wrong rule: in ``module``, ``right`` becomes ``wrong``."""

    name: str
    module: str
    right: str
    wrong: str


MUTANTS = [
    Mutant(
        "p and q swapped in the ratio",
        REJECTION,
        "target[token] / draft[token]",
        "draft[token] / target[token] if target[token] else 1.0",
    ),
    Mutant(
        "everything accepted", REJECTION, "min(1.0, float(target[token] / draft[token]))", "1.0"
    ),
    Mutant(
        "a drawn token accepted with p, as if chosen",
        REJECTION,
        "min(1.0, float(target[token] / draft[token]))",
        "float(target[token])",
    ),
    Mutant(
        "a chosen token always accepted", REJECTION, "return float(target[token])", "return 1.0"
    ),
    Mutant(
        "residual forgotten: p again", REJECTION, "np.maximum(target - draft, 0)", "target.copy()"
    ),
    Mutant(
        "residual of q beyond p",
        REJECTION,
        "np.maximum(target - draft, 0)",
        "np.maximum(draft - target, 0)",
    ),
    Mutant(
        "residual |p - q|", REJECTION, "np.maximum(target - draft, 0)", "np.abs(target - draft)"
    ),
    Mutant(
        "rejected token only removed from p",
        REJECTION,
        "np.maximum(target - draft, 0)",
        "np.where(np.arange(target.size) == token, 0, target)",
    ),
    Mutant(
        "rejected chosen token kept in p",
        REJECTION,
        "left[token] = 0\n    else",
        "left[token] = left[token]\n    else",
    ),
    Mutant(
        "residual not normalised",
        REJECTION,
        "left / total if total > 0 else target\n    return normalised\n\n\ndef verify",
        "left\n    return normalised\n\n\ndef verify",
    ),
    Mutant(
        "siblings all judged with the first p",
        REJECTION,
        "left = residual(left, probs, token)",
        "residual(left, probs, token)",
    ),
    Mutant(
        "with replacement instead of without",
        REJECTION,
        "token, probs = draft.token_id(child), draft.probs(child)",
        "token, probs = draft.token_id(child), draft.probs(draft.children(node)[0])",
    ),
    Mutant(
        "only the last rejected sibling counts",
        REJECTION,
        "left = residual(left, probs, token)",
        "left = residual(first, probs, token)",
    ),
    Mutant(
        "siblings in reverse order",
        REJECTION,
        "for child in draft.children(node):",
        "for child in reversed(draft.children(node)):",
    ),
    Mutant(
        "p of the parent below an accepted node",
        REJECTION,
        "_try_children(draft, node, target_probs(node)",
        "_try_children(draft, node, target_probs(-1)",
    ),
    Mutant(
        "recovered token from p at a rejected leaf",
        REJECTION,
        "return None, left",
        "return None, first",
    ),
    Mutant(
        "only the first sibling tried",
        REJECTION,
        "for child in draft.children(node):",
        "for child in draft.children(node)[:1]:",
    ),
    Mutant(
        "ratios not capped",
        BLOCK,
        "min(1.0, ratios[-1] * float(p[token]) / probability)",
        "ratios[-1] * float(p[token]) / probability",
    ),
    Mutant(
        "ratios capped at the end only",
        BLOCK,
        "    return ratios\n",
        "    raw = np.cumprod([1.0] + [float(p[t]) / (1.0 if q is None else float(q[t])) for t, "
        "q, p in zip(token_ids, draft, target, strict=False)])\n"
        "    return np.minimum(raw, 1).tolist()\n",
    ),
    Mutant("ratio of one token only", BLOCK, "min(1.0, ratios[-1] * float", "min(1.0, float"),
    Mutant("block residual without the ratio", BLOCK, "= ratio * target", "= 1.0 * target"),
    Mutant(
        "block residual forgotten: p again",
        BLOCK,
        "left = left / unmet if unmet > 0 else",
        "left = target_rows[length] if unmet > 0 else",
    ),
    Mutant(
        "prefix accepted with its ratio",
        BLOCK,
        "unmet / (unmet + (1 - ratio)) if unmet > 0 else 0.0",
        "ratio",
    ),
    Mutant(
        "prefixes never accepted below the whole",
        BLOCK,
        "unmet / (unmet + (1 - ratio)) if unmet > 0 else 0.0",
        "0.0",
    ),
    Mutant(
        "prefixes always accepted",
        BLOCK,
        "unmet / (unmet + (1 - ratio)) if unmet > 0 else 0.0",
        "1.0",
    ),
    Mutant("chosen tokens unmet in full", BLOCK, "max(left[token] - 1, 0.0)", "left[token]"),
    Mutant(
        "off by one in the prefix's p",
        BLOCK,
        "ratios[length], target_rows[length], draft_rows",
        "ratios[length], target_rows[length + 1], draft_rows",
    ),
]


def load_module(name: str, change: Callable[[str], str] = str) -> ModuleType:
    """Return a fresh copy of a module of the verifier whose source was changed."""
    path = ROOT_FOLDER / "verifier" / f"{name}.py"
    spec = importlib.util.spec_from_loader(f"freedraft.verifier._mutant_{name}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = "freedraft.verifier"
    exec(compile(change(path.read_text()), str(path), "exec"), module.__dict__)
    return module


def load_rule(mutant: Mutant | None, module: str) -> Rule:
    """Return the rule of a module, broken by ``mutant``."""

    def change(source: str) -> str:
        if mutant is None:
            return source
        if source.count(mutant.right) != 1:
            raise ValueError(
                f"expected the text of mutant {mutant.name!r} once in {module}.py, "
                f"got {source.count(mutant.right)} times"
            )
        changed = source.replace(mutant.right, mutant.wrong)
        # Some mutants want the p before any sibling was tried.
        return changed.replace(
            "    for child in draft.children(node):",
            "    first = left\n    for child in draft.children(node):",
        )

    loaded = load_module(module, change)
    rule: Rule = loaded.verify_by_rejection if module == REJECTION else loaded.verify_block
    return rule


def outcomes(rule: Rule, module: str) -> list[tuple[float, float]]:
    """Return the error and the acceptance length on each shape, kind of node and vocabulary."""
    results = []
    sizes = range(1, 5)
    shapes = [
        shape
        for num_nodes in sizes
        for shape in (
            tree_shapes(num_nodes) if module == REJECTION else [tuple(range(-1, num_nodes - 1))]
        )
    ]
    for vocab_size in (2, 3):
        for index, shape in enumerate(shapes):
            rng = np.random.default_rng((vocab_size, index))
            mixed = rng.choice([DRAWN, CHOSEN], len(shape)).tolist()
            for kinds in ([DRAWN] * len(shape), [REPEATING] * len(shape), mixed):
                target, draft = (
                    RandomModel(vocab_size, int(s)) for s in rng.integers(2**31, size=2)
                )
                outcome = exact_outcome(rule, shape, kinds, target, draft, len(shape) + 1)
                results.append((outcome.error, outcome.acceptance_length))
    return results


def verdict(mutant: Mutant, right: list[tuple[float, float]]) -> dict[str, object]:
    """Run a mutant and say whether and how it was noticed."""
    report: dict[str, object] = dict(asdict(mutant))
    try:
        wrong = outcomes(load_rule(mutant, mutant.module), mutant.module)
    except (AssertionError, IndexError, ZeroDivisionError) as error:
        return report | {"killed": True, "how": f"the rule breaks: {type(error).__name__}"}
    bias = max(error for error, _ in wrong)
    shortfall = max(a - b for (_, a), (_, b) in zip(right, wrong, strict=True))
    if not bias <= TOLERANCE:
        return report | {"killed": True, "how": f"distribution off by {bias:.2g}"}
    if shortfall > TOLERANCE:
        return report | {"killed": True, "how": f"accepts {shortfall:.2g} tokens less"}
    return report | {"killed": False, "how": "not noticed"}


def main() -> int:
    """Print the list; fail when a mutant survives."""
    parser = argparse.ArgumentParser(description="list mutants of the acceptance rules")
    parser.add_argument("--json", type=Path, help="where the list is written")
    arguments = parser.parse_args()
    right = {module: outcomes(load_rule(None, module), module) for module in (REJECTION, BLOCK)}
    worst = max(error for results in right.values() for error, _ in results)
    print(f"the right rules: {sum(map(len, right.values()))} cases, largest error {worst:.1e}")
    reports = [verdict(mutant, right[mutant.module]) for mutant in MUTANTS]
    for report in reports:
        state = "killed  " if report["killed"] else "SURVIVED"
        print(f"{state} {report['module']:19}{report['name']}: {report['how']}")
    survivors = sum(not report["killed"] for report in reports)
    print(f"{len(reports) - survivors} of {len(reports)} killed")
    if arguments.json:
        result = {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "largest_error_of_the_right_rules": worst,
            "mutants": reports,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(worst > TOLERANCE or survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
