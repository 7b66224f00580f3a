"""The benchmark: arms in turn, sums over them, prompts from files, servers under load."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tiny_files import byte_llama, byte_tokenizer

from freedraft.workbench.bench.interleave import run_interleaved
from freedraft.workbench.bench.open_loop import (
    LoadSettings,
    draw_load,
    load_benchmark,
    serve_open_loop,
)
from freedraft.workbench.bench.prediction import predict
from freedraft.workbench.bench.prompts import BenchPrompt, PromptFileError, read_prompts
from freedraft.workbench.bench.report import draw_benchmark, num_runs, run_benchmark
from freedraft.workbench.bench.run import Run, summarize_arm
from freedraft.workbench.bench.settings import PLAIN, BenchSettings, OpenEngine, check_names
from freedraft.workbench.bench.streaming_client import Answer, ServerError, StreamingClient
from freedraft.workbench.bench.transformers_arms import open_transformers
from freedraft.workbench.recorded_steps import RecordedSteps
from freedraft.workbench.request_times import Objective, RequestTimes, service_level

PNG = b"\x89PNG\r\n"


class FakeArm:
    """Gives prepared runs and writes down who ran."""

    def __init__(self, name: str, log: list[str], run: Run) -> None:
        self.name = name
        self._log = log
        self._run = run

    def run(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Run:
        self._log.append(self.name)
        return replace(self._run, seconds=self._run.seconds + len(self._log) / 1000)

    def close(self) -> None:
        self._log.append(f"{self.name} closed")


def test_arms_take_turns_and_warm_ups_do_not_count() -> None:
    log: list[str] = []
    arms = [FakeArm(name, log, Run((1,), 1.0, 1, 0, 0, 1.0)) for name in "abc"]
    runs = run_interleaved(
        arms, [1], 4, num_rounds=3, num_warmups=1, after_run=lambda: log.append("")
    )
    order = "".join(log)
    assert sorted(order[:3]) == sorted(order[3:6]) == sorted(order[6:9]) == ["a", "b", "c"]
    assert len({order[i] for i in (3, 6, 9)}) == 3 and len(order) == 12
    assert {name: len(own) for name, own in runs.items()} == {"a": 3, "b": 3, "c": 3}
    firsts = [min(own, key=lambda run: run.seconds).seconds for own in runs.values()]
    assert min(firsts) == pytest.approx(1.0 + 7 / 1000)  # the first run after the warm-ups


@pytest.mark.parametrize(
    ("names", "rounds", "warmups"), [("aa", 1, 0), ("", 1, 0), ("ab", 0, 0), ("ab", 1, -1)]
)
def test_bad_rounds_are_refused(names: str, rounds: int, warmups: int) -> None:
    arms = [FakeArm(name, [], Run((1,), 1.0, 1, 0, 0, 1.0)) for name in names]
    with pytest.raises(ValueError, match="different names"):
        run_interleaved(
            arms, [1], 1, num_rounds=rounds, num_warmups=warmups, after_run=lambda: None
        )


def test_an_arms_sums_are_over_all_runs_and_its_speedup_over_prompts() -> None:
    plain = [[Run((1, 2, 3, 4, 5), s, 5, 0, 0, 1.0) for s in (5.0, 9.0, 5.0)] for _ in range(2)]
    own = [
        [Run((1, 2, 3, 4, 5), s, 2, 8, 3, 0.5) for s in (2.5, 2.5, 8.0)],
        [Run((1, 2, 9, 4, 5), s, 5, 2, 0, 0.5) for s in (4.0, 5.0, 6.0)],
    ]
    summary = summarize_arm("x", own, plain)
    assert summary.speedup == pytest.approx((2.0 * 1.0) ** 0.5)
    assert (summary.speedup_min, summary.speedup_max) == (1.0, 2.0)
    assert (summary.same_text, summary.prompts, summary.runs) == (1, 2, 6)
    assert summary.tokens_per_step == 30 / 21
    assert summary.acceptance_rate == 9 / 30
    rates = [2.0, 2.0, 0.625, 1.25, 1.0, 5 / 6]
    assert summary.tokens_per_second_median == np.median(rates)
    assert summary.tokens_per_second_p90 == np.percentile(rates, 90)
    assert summary.tpot_ms_p50 == np.percentile([500, 500, 1875, 875, 1125, 1375], 50)
    assert summary.ttft_ms_p99 == 500
    assert summarize_arm("x", [[Run((1,), 2.0, 1, 0, 0, 2.0)]], plain[:1]).tpot_ms_p50 is None
    with pytest.raises(ValueError, match=r"as many prompts as plain has \(2\), got 1"):
        summarize_arm("x", own[:1], plain)


def test_a_benchmark_of_a_real_loop(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    settings = BenchSettings(
        "tiny", drafters=("ngram", "suffix"), max_new_tokens=24, num_rounds=2, cost_gate=False
    )

    def encode(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    engine = open_transformers(settings, byte_llama(), encode)
    prompts = [BenchPrompt(name, "edit", f"{name} and again and again ") for name in ("one", "two")]
    ticks: list[int] = []
    report = run_benchmark(engine, prompts, settings, lambda: ticks.append(1))
    assert len(ticks) == num_runs(engine, 2, settings) == 4 * 2 * 3
    names = [PLAIN, "prompt lookup", "ngram", "suffix"]
    assert [arm.name for arm in report.arms] == names
    for arm in report.arms:
        assert arm.same_text == arm.prompts == 2
        assert arm.runs == 4 and arm.ttft_ms_p50 > 0 and arm.tpot_ms_p99 is not None
    assert report.arms[0].tokens_per_step == report.arms[0].speedup == 1.0
    assert all(arm.tokens_per_step > 1 and arm.acceptance_rate > 0 for arm in report.arms[1:])
    content = json.loads(json.dumps(report.to_dict()))
    assert set(content["arms"]) == set(names)
    assert [row["id"] for row in content["prompts"]] == ["one", "two"]
    assert len(content["prompts"][0]["arms"]["ngram"]["runs"]) == 2
    assert content["machine"]["versions"]["freedraft"]
    pytest.importorskip("matplotlib")
    draw_benchmark(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(PNG)


def test_a_prompt_that_leaves_no_room_is_refused_before_anything_runs() -> None:
    log: list[str] = []
    engine = OpenEngine([FakeArm(PLAIN, log, Run((1,), 1.0, 1, 0, 0, 1.0))], lambda text: [1] * 9)
    settings = BenchSettings("m", max_new_tokens=8, max_context=16)
    with pytest.raises(ValueError, match="1 to 8 tokens, got 9 in 'long'"):
        run_benchmark(engine, [BenchPrompt("long", "", "x")], settings)
    assert log == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"engine": "onnx"}, "engine among transformers, vllm, llama-cpp, got 'onnx'"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"num_warmups": -1}, "num_warmups"),
        ({"engine": "vllm", "fast_path": True}, "transformers for fast_path"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BenchSettings("m", **wrong)


def test_drafters_are_checked_by_name() -> None:
    check_names(["ngram", "corpus:some.pool"])
    for names in (["ngram", "ngram"], ["oracle"]):
        with pytest.raises(ValueError, match="expected different drafters"):
            check_names(names)


def test_prompts_of_jsonl_and_text(tmp_path: Path) -> None:
    lines = [{"prompt": "a\u2028b", "id": "x", "workload": "rag", "more": 1}, {"prompt": "c"}]
    path = tmp_path / "p.jsonl"
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read_prompts(path) == [BenchPrompt("x", "rag", "a\u2028b"), BenchPrompt("3", "", "c")]
    path = tmp_path / "p.txt"
    path.write_text("first\nline\n---\n\n---\n  second\n")
    assert read_prompts(path) == [
        BenchPrompt("1", "", "first\nline"),
        BenchPrompt("2", "", "  second"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": ', "p.jsonl:2: expected one JSON object"),
        ("p.jsonl", b"[]", "p.jsonl:1: expected a JSON object, got list"),
        ("p.jsonl", b'{"text": "a"}', r'"prompt", got the keys \[\'text\'\]'),
        ("p.jsonl", b'{"prompt": "a", "id": 7}', '"id", got int'),
        ("p.jsonl", b'{"prompt": " "}', "got a blank one"),
        ("p.jsonl", b'{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "'x' twice"),
        ("p.jsonl", b"\n", "at least one prompt"),
        ("p.txt", b"---\n---", "at least one prompt"),
        ("p.txt", b"\xff", "UTF-8"),
    ],
)
def test_bad_prompt_files_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PromptFileError, match=message):
        read_prompts(path)
    with pytest.raises(PromptFileError, match="cannot be read"):
        read_prompts(tmp_path / "missing")


class LinearSteps:
    """t(n) = 1 + n / 4, and a tenth more for each token of context."""

    def step_seconds(
        self, num_requests: float, nodes: Any, context: float | None = None
    ) -> np.ndarray:
        assert num_requests == 1 and context is not None
        return np.asarray(1 + np.asarray(nodes) / 4 + context / 10)


def test_a_prediction_sums_steps_at_their_contexts() -> None:
    steps = RecordedSteps(
        10, 6, np.array([4, 0], np.int32), np.array([4, 1], np.int32), np.array([0.5, 0.25])
    )
    prediction = predict(steps, LinearSteps())
    assert prediction.plain_seconds == pytest.approx(5 + (10 + 11 + 12 + 13 + 14) / 10)
    assert prediction.verify_seconds == pytest.approx(3 + (10 + 14) / 10)
    assert (prediction.draft_seconds, prediction.steps) == (0.75, 2)
    assert prediction.speedup == pytest.approx(11 / 6.15)
    one = RecordedSteps(10, 1, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
    assert predict(one, LinearSteps()).speedup == 1.0


class FakeServer(BaseHTTPRequestHandler):
    """Streams the prompt's words; two words a piece, as speculation does."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        text = body["messages"][0]["content"]
        if text == "fail":
            self._answer(b"no such luck", 500)
            return
        words = text.split()[: body["max_tokens"]]
        pieces = [" ".join(words[i : i + 2]) + " " for i in range(0, len(words), 2)]
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant"}}]}]
        events += [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
        if text != "no usage":
            events.append({"choices": [], "usage": {"completion_tokens": len(words)}})
        lines = [f": note\n\ndata: {json.dumps(event)}\n\n" for event in events]
        ends = {"cut off": "", "no json": "data: {"}
        self._answer(("".join(lines) + ends.get(text, "data: [DONE]\n\n")).encode())

    def _answer(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    FakeServer.bodies.clear()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_streamed_answer_is_read_and_counted(server_url: str) -> None:
    client = StreamingClient(server_url)
    answer = client.ask("one two three four five", 4)
    assert (answer.text, answer.num_tokens) == ("one two three four ", 4)
    assert answer.first_token <= answer.end
    assert client.ask("no usage", 9).num_tokens == 1  # pieces, where the server does not count
    body = FakeServer.bodies[0]
    assert (body["model"], body["temperature"], body["stream"]) == ("tiny", 0, True)
    assert StreamingClient(server_url, "other").model == "other"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("fail", "status 200, got 500: no such luck"),
        ("cut off", "got a part of it"),
        ("no json", "a stream of events, got Expecting"),
        ("", "empty"),
    ],
)
def test_failures_of_a_server_are_told(server_url: str, prompt: str, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        StreamingClient(server_url).ask(prompt, 8)


def test_bad_addresses_are_told(server_url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        StreamingClient("localhost:8000")
    with pytest.raises(ServerError, match="list its models"):
        StreamingClient(server_url.rpartition(":")[0] + ":9")


def test_load_is_sent_answered_and_compared(server_url: str, tmp_path: Path) -> None:
    class Upper:
        def ask(self, prompt: str, max_new_tokens: int) -> Answer:
            answer = StreamingClient(server_url).ask(prompt, max_new_tokens)
            return replace(answer, text=answer.text.replace("b", "B"))

    settings = LoadSettings((200.0, 400.0), 9, 3, objective=Objective(60.0, 60.0))
    prompts = ["a a a a", "b b", "fail"]
    ticks: list[int] = []
    results = load_benchmark(
        {"first": StreamingClient(server_url), "upper": Upper()},
        prompts,
        settings,
        lambda: ticks.append(1),
    )
    assert len(ticks) == 36
    assert [(r.server, r.rate) for r in results] == [
        (name, rate) for rate in (200.0, 400.0) for name in ("first", "upper")
    ]
    for result in results:
        assert result.level is not None and result.level.requests == 6
        assert result.failed == 3
        assert result.same_text == (6 if result.server == "first" else 3)
        assert result.level.good_share == 1.0
    pytest.importorskip("matplotlib")
    draw_load(results, settings, tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes().startswith(PNG)


def test_time_to_the_first_token_counts_from_when_a_request_was_due() -> None:
    class Slow:
        def ask(self, prompt: str, max_new_tokens: int) -> Answer:
            raise ServerError("down")

    served = serve_open_loop(Slow(), ["a"], [0.0, 0.001], 4)
    assert (served.times, served.texts, served.errors) == ((), (None, None), ("down", "down"))
    level = service_level(
        [RequestTimes(1.0, 1.5, 3.5, 5), RequestTimes(2.0, 5.0, 5.0, 1)], Objective(1.0, 0.5)
    )
    assert (level.throughput, level.goodput, level.good_share) == (1.5, 0.25, 0.5)
    assert (level.ttft_p50, level.tpot_p50, level.latency_mean) == (1.75, 0.25, 2.75)
    with pytest.raises(ValueError, match="above 0 seconds"):
        Objective(0.0, 1.0)


@pytest.mark.parametrize("wrong", [{"rates": ()}, {"rates": (1.0, 0.0)}, {"num_requests": 0}])
def test_bad_loads_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        LoadSettings(**{"rates": (1.0,)} | wrong)
