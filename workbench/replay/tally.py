"""Running sums of a replay: bounded memory, mergeable, exact in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...drafters.tree import CandidateTree
from .match_lengths import NUM_BUCKETS
from .samples import Highlight, MemorySample, TimeHistogram, keep_extremes

NUM_BINS = 10
"""Equal-width bins of path probability in the expected calibration error."""
_BUFFER = 2048
MAX_SAMPLES = 256


@dataclass(slots=True)
class Counts:
    """Sums over steps.

    Attributes:
        requests: how many.
        tokens: response tokens.
        steps: target steps.
        drafted: nodes proposed.
        accepted: nodes that came true.
    """

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, other: Counts) -> None:
        """Add another's sums."""
        self.requests += other.requests
        self.tokens += other.tokens
        self.steps += other.steps
        self.drafted += other.drafted
        self.accepted += other.accepted


@dataclass(slots=True)
class Sampling:
    """Expected acceptance under sampling, over the steps with log-probabilities.

    Attributes:
        steps: how many.
        accepted: nodes that came true there.
        low: expected accepted nodes, those of unknown probability counted as impossible.
        high: the same, those counted with all probability that is left.
    """

    steps: int = 0
    accepted: int = 0
    low: float = 0.0
    high: float = 0.0


@dataclass(slots=True)
class Tally:
    """What a replay counts.

    Attributes:
        max_nodes: the budget.
        total: over all steps.
        prompt_tokens: of all requests.
        steps_by_accepted: ``(max_nodes + 1,)``, steps by accepted nodes.
        steps_by_drafted: ``(max_nodes + 1,)``, steps by proposed nodes.
        offered: ``(max_nodes + 1,)``, steps whose accepted path was offered a node at that depth;
            entry 0 is not used.
        bin_nodes: nodes by bin of path probability.
        bin_probs: their summed probabilities.
        bin_hits: those that came true.
        propose: nanoseconds of ``propose`` calls.
        extend: of ``extend`` calls.
        observe: of ``observe`` calls.
        by_match: steps, drafted, accepted and tokens by bucket of match length.
        by_workload: sums by workload.
        by_prompt: sums by the power of two below the prompt's length.
        by_response: the same by the response's length.
        sampling: expected acceptance where log-probabilities are given.
        memory: samples of memory while the longest lane of requests went on.
        most: requests with the most tokens a step.
        least: those with the fewest.
    """

    max_nodes: int
    total: Counts = field(default_factory=Counts)
    prompt_tokens: int = 0
    steps_by_accepted: list[int] = field(default_factory=list)
    steps_by_drafted: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    bin_nodes: list[int] = field(default_factory=lambda: [0] * NUM_BINS)
    bin_probs: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)
    bin_hits: list[int] = field(default_factory=lambda: [0] * NUM_BINS)
    propose: TimeHistogram = field(default_factory=TimeHistogram)
    extend: TimeHistogram = field(default_factory=TimeHistogram)
    observe: TimeHistogram = field(default_factory=TimeHistogram)
    by_match: list[Counts] = field(default_factory=lambda: [Counts() for _ in range(NUM_BUCKETS)])
    by_workload: dict[str, Counts] = field(default_factory=dict)
    by_prompt: dict[str, Counts] = field(default_factory=dict)
    by_response: dict[str, Counts] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    memory: list[MemorySample] = field(default_factory=list)
    most: list[Highlight] = field(default_factory=list)
    least: list[Highlight] = field(default_factory=list)
    _probs: list[np.ndarray] = field(default_factory=list)
    _hits: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Size the histograms."""
        for histogram in (self.steps_by_accepted, self.steps_by_drafted, self.offered):
            histogram.extend([0] * (self.max_nodes + 1 - len(histogram)))

    def count_step(
        self, tree: CandidateTree, path: list[int], has_more: bool, emitted: int, bucket: int
    ) -> None:
        """Count one step.

        Args:
            tree: what was proposed.
            path: the accepted nodes.
            has_more: whether a node hung below the accepted path where a token was still to come.
            emitted: tokens that the step emitted.
            bucket: of the match length before the step.
        """
        size, accepted = tree.num_nodes, len(path)
        self.steps_by_accepted[accepted] += 1
        self.steps_by_drafted[size] += 1
        for depth in range(1, accepted + 1):
            self.offered[depth] += 1
        if has_more:
            self.offered[accepted + 1] += 1
        for counts in (self.total, self.by_match[bucket]):
            counts.steps += 1
            counts.tokens += emitted
            counts.drafted += size
            counts.accepted += accepted
        if size:
            hits = np.zeros(size, np.bool_)
            hits[path] = True
            self._probs.append(tree.probs)
            self._hits.append(hits)
            if len(self._probs) >= _BUFFER:
                self._settle_bins()

    def count_request(
        self, counts: Counts, prompt_tokens: int, workload: str, highlight: Highlight | None
    ) -> None:
        """Count a finished request.

        Args:
            counts: its sums.
            prompt_tokens: length of its prompt.
            workload: its workload.
            highlight: what to show of it if it is among the extremes; None for none.
        """
        self.total.requests += 1
        self.prompt_tokens += prompt_tokens
        for table, key in (
            (self.by_workload, workload),
            (self.by_prompt, _power_below(prompt_tokens)),
            (self.by_response, _power_below(counts.tokens)),
        ):
            table.setdefault(key, Counts()).add(counts)
        if highlight is not None:
            keep_extremes(self.most, self.least, highlight)

    def keep_memory(self, samples: list[MemorySample]) -> None:
        """Keep a lane's samples if no longer lane has been seen."""
        if samples and (not self.memory or samples[-1].tokens > self.memory[-1].tokens):
            self.memory = samples

    def settle(self) -> None:
        """Bring the bins of path probability and of times up to date."""
        for histogram in (self.propose, self.extend, self.observe):
            histogram.settle()
        self._settle_bins()

    def _settle_bins(self) -> None:
        if not self._probs:
            return
        probs = np.concatenate(self._probs).astype(np.float64)
        hits = np.concatenate(self._hits)
        bins = np.minimum((probs * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        nodes = np.bincount(bins, minlength=NUM_BINS)
        sums = np.bincount(bins, probs, NUM_BINS)
        came_true = np.bincount(bins[hits], minlength=NUM_BINS)
        for index in range(NUM_BINS):
            self.bin_nodes[index] += int(nodes[index])
            self.bin_probs[index] += float(sums[index])
            self.bin_hits[index] += int(came_true[index])
        self._probs.clear()
        self._hits.clear()

    def calibration_error(self) -> float:
        """Return the expected calibration error of the nodes' path probabilities."""
        num_nodes = sum(self.bin_nodes)
        if num_nodes == 0:
            return 0.0
        pairs = zip(self.bin_probs, self.bin_hits, strict=True)
        return sum(abs(probs - hits) for probs, hits in pairs) / num_nodes

    def merge(self, other: Tally) -> None:
        """Add another replay's sums."""
        self.total.add(other.total)
        self.prompt_tokens += other.prompt_tokens
        for name in ("steps_by_accepted", "steps_by_drafted", "offered", "bin_nodes", "bin_hits"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]
        self.bin_probs = [a + b for a, b in zip(self.bin_probs, other.bin_probs, strict=True)]
        for name in ("propose", "extend", "observe"):
            getattr(self, name).merge(getattr(other, name))
        for counts, more in zip(self.by_match, other.by_match, strict=True):
            counts.add(more)
        for name in ("by_workload", "by_prompt", "by_response"):
            table = getattr(self, name)
            for key, more in getattr(other, name).items():
                table.setdefault(key, Counts()).add(more)
        self.sampling.steps += other.sampling.steps
        self.sampling.accepted += other.sampling.accepted
        self.sampling.low += other.sampling.low
        self.sampling.high += other.sampling.high
        self.keep_memory(other.memory)
        for highlight in (*other.most, *other.least):
            keep_extremes(self.most, self.least, highlight)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON takes them."""
        self.settle()
        return {key: value for key, value in asdict(self).items() if not key.startswith("_")}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Tally:
        """Return the sums that :meth:`to_dict` made ``content`` of."""
        fields = dict(content)
        fields["total"] = Counts(**fields["total"])
        fields["sampling"] = Sampling(**fields["sampling"])
        for name in ("propose", "extend", "observe"):
            fields[name] = TimeHistogram(**fields[name])
        fields["by_match"] = [Counts(**counts) for counts in fields["by_match"]]
        for name in ("by_workload", "by_prompt", "by_response"):
            fields[name] = {key: Counts(**counts) for key, counts in fields[name].items()}
        fields["memory"] = [MemorySample(**sample) for sample in fields["memory"]]
        for name in ("most", "least"):
            fields[name] = [Highlight(**highlight) for highlight in fields[name]]
        return cls(**fields)


def _power_below(length: int) -> str:
    return str(1 << (length.bit_length() - 1)) if length else "0"
