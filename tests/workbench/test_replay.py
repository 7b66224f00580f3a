"""The reader of traces and the replay, against hand-counted walks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_files import byte_tokenizer
from typer.testing import CliRunner

from freedraft import cli
from freedraft.drafters.base import DEFAULT_NAMESPACE, Feedback, RequestId
from freedraft.drafters.calibration import expected_calibration_error
from freedraft.drafters.tree import CandidateTree, accepted_path
from freedraft.workbench.replay import (
    replay_traces,
)
from freedraft.workbench.traces import TokenTrace, TraceError, read_traces, tokenize_traces


class ScriptedDrafter:
    """Proposes what a function of the committed tokens says, and records every call."""

    name = "scripted"

    def __init__(self, script: Callable[[list[int]], CandidateTree]) -> None:
        self.script = script
        self.calls: list[tuple[str, object]] = []
        self.committed: dict[RequestId, list[int]] = {}

    def start(
        self,
        request_id: RequestId,
        prompt_ids: npt.ArrayLike,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self.committed[request_id] = np.asarray(prompt_ids).tolist()

    def extend(self, request_id: RequestId, token_ids: npt.ArrayLike) -> None:
        self.calls.append(("extend", np.asarray(token_ids).tolist()))
        self.committed[request_id] += np.asarray(token_ids).tolist()

    def propose(
        self, request_ids: Sequence[RequestId], max_nodes: int, max_depth: int
    ) -> list[CandidateTree]:
        return [self.script(self.committed[request_id]) for request_id in request_ids]

    def observe(self, request_id: RequestId, tree: CandidateTree, feedback: Feedback) -> None:
        self.calls.append(
            (
                "observe",
                (
                    feedback.token_ids.tolist(),
                    feedback.accepted.tolist(),
                    feedback.choices.tolist(),
                ),
            )
        )

    def truncate(self, request_id: RequestId, length: int) -> None:
        raise AssertionError("a replay never truncates")

    def stop(self, request_id: RequestId) -> None:
        self.calls.append(("stop", request_id))
        del self.committed[request_id]


def token_trace(prompt: list[int], response: list[int], workload: str = "test") -> TokenTrace:
    return TokenTrace("t", workload, None, np.array(prompt, np.int32), np.array(response, np.int32))


#  ├─ 1 (0)
#  │  ├─ 2 (2)
#  │  │  └─ 4 (4)
#  │  └─ 3 (3)
#  └─ 5 (1)
FORK = CandidateTree.from_arrays([1, 5, 2, 3, 4], [-1, -1, 0, 0, 2], [0.9, 0.05, 0.5, 0.4, 0.3])


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ([1, 2, 4, 9], [0, 2, 4]),
        ([1, 3, 4], [0, 3]),
        ([5, 2], [1]),
        ([2, 1], []),
        ([1], [0]),
        ([], []),
    ],
)
def test_accepted_path(target: list[int], path: list[int]) -> None:
    assert accepted_path(FORK, np.array(target, np.int32)).tolist() == path


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_accepted_path_is_the_longest_common_prefix(
    chains: list[list[int]], target: list[int]
) -> None:
    tree = CandidateTree.from_chains(chains)
    longest = 0
    for chain in chains:
        common = 0
        while common < min(len(chain), len(target)) and chain[common] == target[common]:
            common += 1
        longest = max(longest, common)
    path = accepted_path(tree, np.array(target, np.int32)).tolist()
    assert tree.token_ids[path].tolist() == target[:longest]
    assert path == (tree.path(path[-1]) if path else [])


def test_steps_are_counted_as_a_verifier_would() -> None:
    made: list[ScriptedDrafter] = []

    def make() -> ScriptedDrafter:
        made.append(ScriptedDrafter(lambda committed: FORK))
        return made[-1]

    result = replay_traces(
        [token_trace([7], [1, 2, 4, 8, 5, 6, 1, 3])], make, max_nodes=5, file="f.jsonl"
    )

    # [1 2 4] + 8, [5] + 6, [1 3] and nothing left for a bonus token
    assert (result.tokens, result.steps) == (8, 3)
    assert result.tokens_per_step == pytest.approx(8 / 3)
    assert result.drafted_per_step == 5
    assert result.acceptance_rate == pytest.approx(6 / 15)
    assert (result.file, result.workload, result.drafter) == ("f.jsonl", "test", "scripted")
    assert made[0].calls == [
        ("observe", ([1, 2, 4, 8], [0, 2, 4], [1, 2, -1, 4, -1, 8])),
        ("extend", [1, 2, 4, 8]),
        ("observe", ([5, 6], [1], [5, -1, 6, -1, -1, -1])),
        ("extend", [5, 6]),
        ("observe", ([1, 3], [0, 3], [1, 3, -1, -1, -1, -1])),
        ("extend", [1, 3]),
        ("stop", 0),
    ]


def test_a_replay_without_drafts_is_one_token_a_step() -> None:
    result = replay_traces(
        [token_trace([], [1, 2]), token_trace([3], [])],
        lambda: ScriptedDrafter(lambda committed: CandidateTree.empty()),
        max_nodes=0,
    )
    assert (result.requests, result.tokens, result.steps) == (2, 2, 2)
    assert (result.tokens_per_step, result.acceptance_rate) == (1, 0)
    assert result.calibration_error == 0


@pytest.mark.parametrize(("warm", "drafters"), [(True, 1), (False, 3)])
def test_cold_means_a_fresh_drafter_for_each_request(warm: bool, drafters: int) -> None:
    made: list[ScriptedDrafter] = []

    def make() -> ScriptedDrafter:
        made.append(ScriptedDrafter(lambda committed: FORK))
        return made[-1]

    finished: list[None] = []
    result = replay_traces(
        [token_trace([0], [1], kind) for kind in ("b", "a", "b")],
        make,
        max_nodes=5,
        warm=warm,
        on_request=lambda: finished.append(None),
    )
    assert len(made) == drafters
    assert len(finished) == 3
    assert (result.workload, result.warm) == ("a,b", warm)


def test_bad_arguments_and_bad_drafters_are_named() -> None:
    def make() -> ScriptedDrafter:
        return ScriptedDrafter(lambda committed: FORK)

    with pytest.raises(ValueError, match="at least one trace"):
        replay_traces([], make, max_nodes=4)
    with pytest.raises(ValueError, match="max_nodes >= 0, got -1"):
        replay_traces([token_trace([0], [1])], make, max_nodes=-1)
    with pytest.raises(ValueError, match="at most 4 nodes from the drafter scripted, got 5"):
        replay_traces([token_trace([0], [1])], make, max_nodes=4)


def test_expected_calibration_error() -> None:
    # bin 9: mean 0.95, both seen: gap 0.05 of 2 nodes; bin 2: mean 0.2, seen 0: gap 0.2 of 1 node
    probs = np.array([0.9, 1.0, 0.2], np.float32)
    error = expected_calibration_error(probs, np.array([True, True, False]))
    assert error == pytest.approx((2 * 0.05 + 0.2) / 3)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


GOOD = json.dumps({"id": "a", "workload": "w", "prompt": "p", "response": "r"})


def test_traces_are_read_and_tokenized(tmp_path: Path) -> None:
    session = json.dumps(
        {"id": "b", "workload": "w", "session": "s", "prompt": "xy", "response": "\u2028é", "x": 1},
        ensure_ascii=False,
    )
    traces = read_traces(write_lines(tmp_path / "t.jsonl", GOOD, "", session, ""))
    assert [(t.trace_id, t.session, t.response) for t in traces] == [
        ("a", None, "r"),
        ("b", "s", "\u2028é"),
    ]
    tokens = list(tokenize_traces(traces, lambda text: [ord(letter) for letter in text]))
    assert tokens[1].prompt_ids.tolist() == [ord("x"), ord("y")]
    assert tokens[1].response_ids.dtype == np.int32


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"t\.jsonl:2: expected one JSON object, got text that is not JSON"),
        ("[1]", r"t\.jsonl:2: expected a JSON object, got an array"),
        ("null", r"t\.jsonl:2: expected a JSON object, got null"),
        (
            '{"id": "a", "workload": "w", "prompt": "p"}',
            r't\.jsonl:2: expected the key "response", got the keys',
        ),
        (
            '{"id": "a", "workload": "w", "prompt": 3, "response": "r"}',
            r't\.jsonl:2: expected text for "prompt", got a number',
        ),
        (
            '{"id": "a", "workload": "w", "session": {}, "prompt": "p", "response": "r"}',
            r't\.jsonl:2: expected text for "session", got an object',
        ),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_traces(write_lines(tmp_path / "t.jsonl", GOOD, line))


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: cannot be read"):
        read_traces(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="at least one trace"):
        read_traces(write_lines(tmp_path / "empty.jsonl", "", " "))
    (tmp_path / "latin.jsonl").write_bytes(GOOD.encode() + b"\n\xe9")
    with pytest.raises(TraceError, match=r"latin\.jsonl:2: expected UTF-8"):
        read_traces(tmp_path / "latin.jsonl")


# -- the command


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> str:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    text = "def step(state):\n    return state + 1\n"
    record = {"id": "a", "workload": "edit", "prompt": text, "response": text * 2}
    return str(write_lines(tmp_path / "copy.jsonl", json.dumps(record), json.dumps(record)))


def run_replay(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["replay", *args])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_json(trace_file: str, tokenizer_folder: str, tmp_path: Path) -> None:
    args = (trace_file, "--tokenizer", tokenizer_folder, "--drafter", "ngram,edit")
    code, out, err = run_replay(*args, "--max-nodes", "0,8", "--json", "-")
    assert code == 0, err
    results = json.loads(out)["results"]
    assert [(one["drafter"], one["max_nodes"]) for one in results] == [
        ("ngram", 0),
        ("ngram", 8),
        ("edit", 0),
        ("edit", 8),
    ]
    for one in results:
        assert (one["file"], one["workload"], one["requests"]) == ("copy.jsonl", "edit", 2)
        assert one["tokens"] == 2 * 2 * 38
        assert (one["tokens_per_step"] == 1) == (one["max_nodes"] == 0)
        assert one["tokens_per_step"] == pytest.approx(one["tokens"] / one["steps"])
        assert {"propose_us_p50", "propose_us_p99", "extend_us_p50"} <= set(one)

    target = tmp_path / "out.json"
    code, out, _ = run_replay(*args, "--cold", "--json", str(target))
    assert code == 0
    assert "copy" in out and "ngram" in out  # the table
    assert [one["warm"] for one in json.loads(target.read_text())["results"]] == [False, False]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--drafter", "ngram,magic"), "expected names among"),
        (("--drafter", ","), "expected names among"),
        (("--max-nodes", "8,x"), "expected whole numbers >= 0 for --max-nodes, got '8,x'"),
        (("--max-nodes", "-1"), "expected whole numbers >= 0"),
        (("--tokenizer", "no/such/folder/here"), "expected a tokenizer's id or folder"),
    ],
)
def test_the_command_names_bad_input(trace_file: str, args: Sequence[str], message: str) -> None:
    code, out, err = run_replay(trace_file, *args)
    assert (code, out) == (2, "")
    assert message in err


def test_the_command_names_bad_traces(tmp_path: Path, tokenizer_folder: str) -> None:
    broken = write_lines(tmp_path / "broken.jsonl", GOOD, "{")
    code, _, err = run_replay(str(broken), "--tokenizer", tokenizer_folder)
    assert code == 2
    assert "broken.jsonl:2: expected one JSON object" in err.replace("\n", "")
    code, _, err = run_replay(str(tmp_path / "none.jsonl"))
    assert code == 2
    assert "cannot be read" in err
