"""The proposer against a stand-in of the runner; benchmarks/vllm_check.sh runs real vLLM."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_fakes import FakeRunner, make_config, scheduler_step

from freedraft.integrations.step_clock import StepClock
from freedraft.integrations.vllm_adapter import (
    CONFIG_VARIABLE,
    FreedraftProposer,
    read_config,
)
from freedraft.integrations.vllm_plugin import wrap_runner

# a text whose continuation an n-gram finds: 1 2 3 4 5 6 7 8 | 1 2 3 -> 4 5 6 7 8
TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    yield


def make_runner(**changes: Any) -> FakeRunner:
    return FakeRunner(make_config(**changes), FreedraftProposer)


def test_drafts_are_plain_integers_of_what_is_repeated() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    runner.add("b", [5, 5])
    drafts = runner.step({"a": [3]})
    assert drafts["a"][:5] == [4, 5, 6, 7, 8]
    assert len(drafts["a"]) <= 6
    assert drafts["b"] == []  # in its prefill
    assert all(type(token) is int for token in drafts["a"])


def test_counts_are_those_of_the_scheduler() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    draft = runner.step({"a": [3]})["a"]
    runner.step({"a": [4, 5, 9]}, scheduler_step(verified={"a": draft[:2]}))
    statistics = runner.drafter.statistics
    assert (statistics["drafted"], statistics["accepted"]) == (2, 2)
    assert (statistics["steps"], statistics["emitted"]) == (2, 4)


def test_the_context_end_and_max_tokens_bound_a_draft() -> None:
    runner = make_runner(max_model_len=14)
    runner.add("a", TEXT)
    assert runner.step({"a": [3]})["a"] == [4]  # 12 tokens are there, the step adds one itself
    runner = make_runner()
    runner.add("a", TEXT, max_tokens=4)
    assert runner.step({"a": [3]})["a"] == [4, 5]
    runner.add("b", TEXT, max_tokens=1)
    assert runner.step({"b": [3]})["b"] == []


def test_dynamic_numbers_of_tokens_are_obeyed() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    assert runner.step({"a": [3]}, scheduler_step(wanted=2))["a"] == [4, 5]
    assert runner.step({"a": [4]}, scheduler_step(wanted=0))["a"] == []
    assert runner.step({"a": [5]}, scheduler_step(wanted=99))["a"][:3] == [6, 7, 8]


def test_a_request_can_limit_its_drafts_and_predict_its_output() -> None:
    runner = make_runner(num_speculative_tokens=8)
    runner.add("off", TEXT, extra_args={"freedraft_max_tokens": 0})
    runner.add("two", TEXT, extra_args={"freedraft_max_tokens": 2})
    drafts = runner.step({"off": [3], "two": [3]})
    assert drafts == {"off": [], "two": [4, 5]}
    predicted = [11, 12, 13, 14, 15, 10, 9, 8, 7, 6, 5]
    runner.add("told", [1, 2], extra_args={"freedraft_prediction": predicted})
    runner.step({"told": [11]})
    assert runner.step({"told": [12]})["told"][:2] == [13, 14]


def test_finished_requests_are_released_and_ids_used_again() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    assert runner.step({"a": [3]})["a"]
    runner.remove("a")
    runner.add("a", [7, 7, 6])
    assert runner.step({"a": [5]}, scheduler_step(finished=["a"]))["a"] == []
    assert runner.drafter.statistics["switched_off"] == 0


def test_preempted_requests_come_back_as_they_were() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    runner.add("b", [5, 6])
    runner.step({"a": [3], "b": [7]})
    runner.remove("a", ends=False)
    runner.step({"b": [8]})
    runner.add("a", TEXT)
    del runner.input_batch.req_ids[-1]  # resumed with its tokens: prompt and output
    row = len(runner.input_batch.req_ids)
    runner.input_batch.req_ids.append("a")
    runner.input_batch.token_ids_cpu[row, : len(TEXT) + 1] = [*TEXT, 3]
    runner.input_batch.num_tokens_no_spec[row] = len(TEXT) + 1
    assert runner.step({"a": [4]})["a"][:4] == [5, 6, 7, 8]
    assert runner.drafter.statistics["steps"] == 4


def learns(first: dict[str, Any], second: dict[str, Any], **changes: Any) -> bool:
    """Return whether a request drafts from an earlier one's response.

    Each is described by its salt (missing: unknown) and adapter.
    """
    runner = make_runner(**changes)
    response = [11, 12, 13, 14, 15, 10, 11, 12, 13]

    def begin(name: str, about: dict[str, Any]) -> None:
        runner.add(name, [1], lora_id=about.get("lora"))
        salts = {name: about["salt"]} if "salt" in about else None
        runner.step({name: response[:1]}, scheduler_step(salts=salts))

    begin("a", first)
    for token in response[1:]:
        runner.step({"a": [token]})
    runner.remove("a")
    begin("b", second)
    runner.step({"b": response[1:2]}, scheduler_step(finished=["a"]))
    return runner.step({"b": response[2:3]})["b"][:1] == [14]


def test_only_requests_of_one_adapter_and_salt_learn_from_each_other() -> None:
    assert learns({"salt": None}, {"salt": None})
    assert learns({"salt": "x"}, {"salt": "x"})
    assert learns({"salt": "x", "lora": 1}, {"salt": "x", "lora": 1})
    assert not learns({"salt": "x"}, {"salt": "y"})
    assert not learns({"salt": None}, {"salt": "x"})
    assert not learns({"salt": None}, {"salt": None, "lora": 1})
    assert not learns({"salt": None, "lora": 2}, {"salt": None, "lora": 1})


def test_requests_of_unknown_salt_and_a_setting_keep_apart() -> None:
    assert not learns({}, {})
    assert not learns({"salt": None}, {})
    apart = {"budget": "full", "sharing": "none"}
    assert not learns({"salt": None}, {"salt": None}, settings=apart)


def test_embeddings_and_placeholders_are_no_text() -> None:
    runner = make_runner(hf_config=SimpleNamespace(image_token_id=9, eos_token_id=2))
    runner.add("a", [9, 9, 9, 4, 9, 9])
    assert runner.step({"a": [9]})["a"] == []
    runner.add("b", TEXT, prompt_embeds=object())
    runner.input_batch.is_token_ids[1, :3] = False
    assert runner.step({"b": [3]})["b"] == []


def test_a_fault_never_leaves_propose(caplog: pytest.LogCaptureFixture) -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    runner.add("b", TEXT)
    runner.input_batch.token_ids_cpu = runner.input_batch.token_ids_cpu.astype(np.float64)
    with (
        caplog.at_level(logging.ERROR, "vllm.freedraft"),
        pytest.warns(RuntimeWarning, match="switched off for one request"),
    ):
        assert runner.step({"a": [3], "b": [3]}) == {"a": [], "b": []}
    assert runner.drafter.statistics["switched_off"] == 2
    assert "decoding goes on without" in caplog.text
    runner.input_batch.token_ids_cpu = runner.input_batch.token_ids_cpu.astype(np.int32)
    assert runner.step({"a": [4], "b": [4]}) == {"a": [], "b": []}
    runner.add("c", TEXT)
    assert runner.step({"a": [5], "b": [5], "c": [3]})["c"][:1] == [4]


def test_a_foreign_scheduler_output_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    with caplog.at_level(logging.ERROR, "vllm.freedraft"):
        assert runner.step({"a": [3]}, SimpleNamespace())["a"][:1] == [4]
    assert "decoding goes on without" in caplog.text


def test_warnings_as_errors_do_not_leave_propose_either() -> None:
    runner = make_runner()
    runner.add("a", TEXT)
    runner.input_batch.token_ids_cpu = runner.input_batch.token_ids_cpu.astype(np.float64)
    assert runner.step({"a": [3]}) == {"a": []}  # pytest turns warnings into errors here


def test_rows_without_a_runner_are_known_by_their_text() -> None:
    proposer = FreedraftProposer(make_config())
    tokens = np.zeros((2, 64), np.int32)
    tokens[0, :12] = [*TEXT, 3]
    tokens[1, :2] = [9, 9]
    sizes = np.array([12, 2])
    drafts = proposer.propose([[3], []], sizes, tokens, slot_mappings=None)
    assert drafts[0][:5] == [4, 5, 6, 7, 8] and drafts[1] == []
    tokens[1, :13] = [*TEXT, 3, 4]  # the row has moved
    drafts = proposer.propose([[], [4]], np.array([0, 13]), tokens)
    assert drafts[1][:4] == [5, 6, 7, 8]
    assert proposer.statistics["steps"] == 1


def test_a_foreign_runner_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Foreign:
        def propose_draft_token_ids(self, batch: object) -> list[list[int]]:
            return [[1]]

    runner = Foreign()
    with caplog.at_level(logging.WARNING, "vllm.freedraft"):
        assert not wrap_runner(runner, SimpleNamespace())  # type: ignore[arg-type]
    assert "left alone" in caplog.text
    assert runner.propose_draft_token_ids(None) == [[1]]


def test_one_long_request_does_not_give_the_batch_dummy_drafts() -> None:
    runner = make_runner()
    assert runner._input_fits_in_drafter(object())
    assert not runner._input_fits_in_drafter(None)


def test_only_the_first_tensor_rank_drafts_unless_each_schedules_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parallel_state = SimpleNamespace(get_tensor_model_parallel_rank=lambda: 1)
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(__import__("sys").modules, name, SimpleNamespace())
    monkeypatch.setitem(
        __import__("sys").modules, "vllm.distributed.parallel_state", parallel_state
    )
    runner = make_runner(tensor_parallel_size=2, settings={"budget": "full", "mend": False})
    runner.add("a", TEXT)
    assert runner.step({"a": [3]})["a"] == []
    runner = make_runner(
        tensor_parallel_size=2, executor="external_launcher", settings={"mend": False}
    )
    runner.add("a", TEXT)
    assert runner.step({"a": [3]})["a"][:1] == [4]


def test_step_times_begin_with_those_of_the_device() -> None:
    budgets = [
        FreedraftProposer(make_config(settings={}, device_type=device))._budget
        for device in ("cuda", "cpu")
    ]
    on_gpu, on_cpu = (float(budget.costs.relative(1, 17)) for budget in budgets if budget)
    assert 1 < on_gpu < on_cpu


def test_settings_come_from_one_place(tmp_path: Path) -> None:
    assert read_config({}, {}).drafter == "blend"
    assert read_config({"freedraft": {"drafter": "ngram"}}, {}).drafter == "ngram"
    assert read_config({}, {CONFIG_VARIABLE: '{"drafter": "suffix"}'}).drafter == "suffix"
    path = tmp_path / "freedraft.json"
    path.write_text(json.dumps({"sharing": "none"}))
    assert read_config({"freedraft": str(path)}, {}).sharing == "none"
    assert read_config(object(), {CONFIG_VARIABLE: str(path)}).sharing == "none"
    with pytest.raises(ValueError, match="got both"):
        read_config({"freedraft": {}}, {CONFIG_VARIABLE: "{}"})
    with pytest.raises(ValueError, match="expected an object or a path, got int"):
        read_config({"freedraft": 3}, {})


def test_a_wrong_setting_stops_the_start() -> None:
    with pytest.raises(ValueError, match=r"expected settings among .*got 'draftr'"):
        FreedraftProposer(make_config(settings={"draftr": "ngram"}))


def test_warm_files_bring_back_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "warm.snapshot"
    warm = {"budget": "full", "warm_file": str(path), "save_seconds": 3600}
    response = [11, 12, 13, 14, 15, 10, 11, 12, 13]
    runner = make_runner(settings=warm)
    runner.add("a", [1])
    runner.step({"a": response}, scheduler_step(salts={"a": None}))
    runner.remove("a")
    runner.step({}, scheduler_step(finished=["a"]))
    runner.drafter.close()
    runner = make_runner(settings=warm)
    runner.add("b", [2])
    runner.step({"b": response[:2]}, scheduler_step(salts={"b": None}))
    assert runner.step({"b": response[2:3]})["b"][:2] == [14, 15]
    runner.drafter.close()
    runner.drafter.close()


@pytest.mark.parametrize("content", [b"", b"nonsense" * 40])
def test_broken_warm_files_start_cold(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "warm.snapshot"
    path.write_bytes(content)
    settings = {"budget": "full", "warm_file": str(path)}
    with caplog.at_level(logging.WARNING, "vllm.freedraft"):
        runner = make_runner(settings=settings)
    assert "starts without earlier responses" in caplog.text
    runner.add("a", TEXT)
    assert runner.step({"a": [3]})["a"]
    runner.drafter.close()


def test_warm_files_of_a_larger_vocabulary_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "warm.snapshot"
    settings = {"budget": "full", "warm_file": str(path)}
    runner = make_runner(settings=settings, vocab_size=100)
    runner.add("a", [1])
    runner.step({"a": [90, 91, 92, 93]}, scheduler_step(salts={"a": None}))
    runner.remove("a")
    runner.step({}, scheduler_step(finished=["a"]))
    runner.drafter.close()
    with caplog.at_level(logging.WARNING, "vllm.freedraft"):
        make_runner(settings=settings, vocab_size=50).drafter.close()
    assert "below the vocabulary size 50" in caplog.text


def test_the_clock_counts_only_steps_of_known_requests() -> None:
    seconds = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    clock = StepClock(lambda: next(seconds))
    assert clock.tick(["a", "b"], True) is None  # the first call
    assert clock.tick(["a", "b"], True) == 1.0
    assert clock.tick(["a", "c"], True) is None  # a prompt was computed
    assert clock.tick(["a"], True) == 3.0
    assert clock.tick(["a"], False) is None  # another request is in its prefill
    assert clock.tick([], True) is None


def test_the_budget_learns_from_the_clock() -> None:
    runner = make_runner(settings={})
    runner.add("a", TEXT)
    for token in [3, 4, 5, 6, 7, 8]:
        runner.step({"a": [token]})
    assert runner.drafter._budget.costs.plain_seconds(1) is not None


TOKENS = st.integers(0, 3)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_traffic_gets_valid_drafts(data: st.DataObject) -> None:
    runner = FakeRunner(
        make_config(max_model_len=40, vocab_size=4, settings={"drafter": "ngram"}),
        FreedraftProposer,
    )
    counter = 0
    for _ in range(data.draw(st.integers(1, 20))):
        batch = runner.input_batch
        if len(batch.req_ids) < 4 and data.draw(st.booleans()):
            counter += 1
            prompt = data.draw(st.lists(TOKENS, min_size=1, max_size=12))
            runner.add(f"r{counter % 3}-{counter}", prompt)
        finished = [name for name in batch.req_ids if data.draw(st.integers(0, 9)) == 0]
        for name in finished:
            runner.remove(name)
        sampled = {}
        for row, name in enumerate(batch.req_ids):
            room = 40 - int(batch.num_tokens_no_spec[row])
            tokens = data.draw(st.lists(TOKENS, max_size=min(room, 5)))
            sampled[name] = tokens
        wanted = data.draw(st.integers(0, 6))
        drafts = runner.step(sampled, scheduler_step(wanted, finished=finished))
        for row, name in enumerate(batch.req_ids):
            draft = drafts[name]
            assert len(draft) <= wanted
            assert int(batch.num_tokens_no_spec[row]) + len(draft) <= 40
            assert all(type(token) is int and 0 <= token < 4 for token in draft)
            if not sampled[name]:
                assert draft == []
    assert runner.drafter.statistics["switched_off"] == 0
