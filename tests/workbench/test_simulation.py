"""The simulated server against plain reckoning, and the tables that it lives on."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import RandomTreeDrafter

from freedraft import CandidateTree
from freedraft.drafters.tree import accepted_path
from freedraft.integrations.budget.calibration_file import MEASURED, Calibration
from freedraft.integrations.budget.data_sheets import DEVICES, LLAMA_8B, roofline_seconds
from freedraft.workbench.recorded_steps import record_steps
from freedraft.workbench.request_times import Objective
from freedraft.workbench.simulation.acceptance import AcceptanceTable, empty_table, tabulate
from freedraft.workbench.simulation.policy import PooledPolicy, Schedule, parse_schedule
from freedraft.workbench.simulation.result import summarize_simulation
from freedraft.workbench.simulation.server import Server, ServerConfig
from freedraft.workbench.simulation.shapes import (
    MODEL_SHAPES,
    ShapeError,
    model_shape,
    shape_of_config,
)
from freedraft.workbench.simulation.step_times import MeasuredTimes, RooflineTimes, StepLoad
from freedraft.workbench.simulation.sweep import (
    SweepConfig,
    best_by_rate,
    plain_capacity,
    sweep,
)
from freedraft.workbench.simulation.workload import (
    SimulatedRequest,
    open_loop,
    poisson_arrivals,
)


@dataclass(frozen=True)
class LinearTimes:
    """A step takes a base and something for each token."""

    base: float = 1.0
    each: float = 0.0

    def seconds(self, load: StepLoad) -> float:
        return self.base + self.each * load.num_tokens

    def seconds_by_nodes(self, load: StepLoad, max_nodes: int) -> npt.NDArray[np.float64]:
        return self.base + self.each * (load.num_tokens - load.num_nodes + np.arange(max_nodes + 1))


def random_table(
    seed: int, prompt_length: int, num_tokens: int, max_nodes: int = 4
) -> AcceptanceTable:
    """Return chains of random lengths, a random part of which is right."""
    rng = np.random.default_rng(seed)
    left = np.maximum(num_tokens - np.arange(num_tokens) - 1, 0)
    drafted = np.minimum(rng.integers(0, max_nodes + 1, num_tokens), left)
    drafted[:1] = 0
    right = rng.integers(0, drafted + 1)
    accepted = np.minimum(right[:, None], np.arange(max_nodes + 1))
    probs = np.sort(rng.random((num_tokens, max_nodes), np.float32), axis=1)[:, ::-1]
    probs = np.where(np.arange(max_nodes) < drafted[:, None], probs, 0).astype(np.float32)
    return AcceptanceTable(
        prompt_length, drafted.astype(np.uint8), accepted.astype(np.uint8), probs
    )


def steps_of(table: AcceptanceTable, most: int) -> int:
    """Return the decoding steps of a request with at most so many nodes a step."""
    position, steps = 1, 0
    while position < table.num_tokens:
        nodes = min(int(table.num_drafted[position]), most)
        position += int(table.num_accepted[position, nodes]) + 1
        steps += 1
    return steps


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 9))
def test_a_table_says_what_each_smaller_budget_would_accept(
    seed: int, num_tokens: int, max_nodes: int
) -> None:
    rng = random.Random(seed)
    response = [rng.randrange(4) for _ in range(num_tokens)]
    answer = [5, 6, *response]
    table = tabulate(
        RandomTreeDrafter(seed, [answer]), [5, 6], response, max_nodes=max_nodes, chains=False
    )
    again = RandomTreeDrafter(seed, [answer])
    again.start(0, [5, 6])
    again.extend(0, response[:1])
    assert table.num_drafted[0] == 0
    for position in range(1, num_tokens):
        room = min(num_tokens - position - 1, max_nodes)
        tree = again.propose([0], max_nodes, room)[0] if room else CandidateTree.empty()
        assert table.num_drafted[position] == tree.num_nodes
        np.testing.assert_array_equal(
            table.probs[position], np.pad(-np.sort(-tree.probs), (0, max_nodes - tree.num_nodes))
        )
        left = np.array(response[position:], np.int32)
        for nodes in range(max_nodes + 1):
            expected = accepted_path(tree.cut(nodes), left).size
            assert table.num_accepted[position, nodes] == expected
        again.extend(0, response[position : position + 1])


def test_a_table_of_chains_takes_the_best_one() -> None:
    class Fork(RandomTreeDrafter):
        def propose(
            self, request_ids: Sequence[object], max_nodes: int, max_depth: int
        ) -> list[CandidateTree]:
            return [CandidateTree.from_arrays([1, 2, 3], [-1, -1, 1], [0.4, 0.6, 0.5])]

    table = tabulate(Fork(0), [9], [7, 2, 3, 7, 7], max_nodes=3)
    assert table.num_drafted.tolist()[1] == 2
    assert table.num_accepted[1].tolist() == [0, 1, 2, 2]
    assert table.probs[1].tolist() == pytest.approx([0.6, 0.5, 0.0])


@pytest.mark.parametrize(("prompt", "max_nodes"), [([], 4), ([1], -1), ([1], 256)])
def test_bad_arguments_of_tables_are_refused(prompt: list[int], max_nodes: int) -> None:
    with pytest.raises(ValueError, match="expected a prompt"):
        tabulate(RandomTreeDrafter(0), prompt, [1, 2], max_nodes=max_nodes)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(0, 4))
def test_a_request_alone_takes_the_steps_of_its_table(
    seed: int, num_tokens: int, most: int
) -> None:
    table = random_table(seed, 10, num_tokens)
    server = Server(LinearTimes(), Schedule({1: most}), ServerConfig(max_step_tokens=100))
    (outcome,), totals = server.run([SimulatedRequest(2.5, table)])
    steps = steps_of(table, most)
    assert (outcome.first_token, outcome.end) == (3.5, 3.5 + steps)
    assert (outcome.ttft, outcome.tpot) == (1.0, steps / max(num_tokens - 1, 1))
    assert (totals.steps, totals.target_steps) == (steps + 1, steps + 1)
    assert (totals.emitted, totals.emitted - totals.accepted) == (num_tokens, steps + 1)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_every_request_ends_whole_whatever_the_limits(
    seed: int, num_requests: int, max_requests: int, pooled: bool
) -> None:
    rng = random.Random(seed)
    tables = [
        random_table(seed + i, rng.randint(1, 40), rng.randint(1, 30)) for i in range(num_requests)
    ]
    most = max(t.prompt_length + t.num_tokens + t.max_nodes for t in tables)
    config = ServerConfig(
        max_requests=max_requests,
        max_step_tokens=rng.randint(1, 50),
        kv_tokens=4 * math.ceil(most / 4) + 4 * rng.randint(0, 20),
        block_size=4,
    )
    policy = PooledPolicy() if pooled else Schedule({1: 4, 3: 1, 5: 0})
    requests = open_loop(tables, rng.choice([0.1, 3.0, math.inf]), num_requests, seed)
    server = Server(LinearTimes(1.0, 0.1), policy, config)
    outcomes, totals = server.run(requests)
    assert sorted(o.arrival for o in outcomes) == [r.arrival for r in requests]
    assert sum(o.num_tokens for o in outcomes) == sum(r.table.num_tokens for r in requests)
    assert totals.emitted == totals.target_steps + totals.accepted
    assert all(o.arrival < o.first_token <= o.end <= totals.seconds for o in outcomes)
    assert server._free_blocks == config.kv_tokens // 4
    assert totals.weighted_decoding <= max_requests * totals.busy_seconds


def test_prompts_are_read_in_chunks_beside_decoding() -> None:
    config = ServerConfig(max_requests=4, max_step_tokens=10)
    first, second = empty_table(8, 6), empty_table(25, 2)
    outcomes, totals = Server(LinearTimes(), Schedule({1: 0}), config).run(
        [SimulatedRequest(0.0, first), SimulatedRequest(0.0, second)]
    )
    # Steps: 8 + 2 of the second prompt, then three times 1 + 9, the last with the 5 that are left.
    assert [o.first_token for o in outcomes] == [4.0, 1.0]
    assert [o.end for o in outcomes] == [5.0, 6.0]
    assert totals.steps == 6


def test_the_latest_request_makes_room_and_starts_over() -> None:
    config = ServerConfig(max_requests=2, max_step_tokens=100, kv_tokens=16, block_size=4)
    tables = [empty_table(7, 6), empty_table(7, 3)]
    requests = [SimulatedRequest(0.0, table) for table in tables]
    outcomes, totals = Server(LinearTimes(), Schedule({1: 0}), config).run(requests)
    assert totals.preemptions == 1
    # Both emit two tokens; the third block that both want is not there for the second, which waits
    # for the first one's end and then reads its nine tokens in one step.
    assert (outcomes[0].end, outcomes[0].num_tokens) == (6.0, 6)
    assert (outcomes[1].first_token, outcomes[1].end) == (1.0, 7.0)


def test_drafting_costs_its_time_only_where_it_is_asked_for() -> None:
    table = replace(random_table(1, 5, 12), draft_seconds=0.25)
    ends = {}
    for most in (0, 4):
        server = Server(LinearTimes(), Schedule({1: most}))
        ends[most] = server.run([SimulatedRequest(0.0, table)])[0][0].end
    assert ends[0] == 1 + steps_of(table, 0)
    assert ends[4] == pytest.approx(1 + 1.25 * steps_of(table, 4))


def test_a_schedule_counts_the_requests_that_decode() -> None:
    schedule = Schedule({1: 16, 8: 4, 32: 0})
    rows = [np.ones(10, np.float32), np.ones(2, np.float32)]
    for num_decoding, expected in ((1, [10, 2]), (7, [10, 2]), (8, [4, 2]), (99, [0, 0])):
        load = StepLoad(num_decoding, 0, 100)
        assert schedule.nodes(rows, load, LinearTimes()) == expected
        assert schedule.asks(num_decoding) == any(expected)


def test_the_pooled_policy_takes_what_pays_for_all() -> None:
    rows = [np.array([0.9, 0.5, 0.1], np.float32), np.array([0.6], np.float32)]
    # 2 + 0.9 + 0.6 over 4.4 is the most: 2/4, 2.9/4.2, 3.5/4.4 = 0.795, 4.0/5.5, ...
    assert PooledPolicy().nodes(rows, StepLoad(2, 0, 10), LinearTimes(3.6, 0.2)) == [2, 1]
    assert PooledPolicy().nodes(rows, StepLoad(2, 0, 10), LinearTimes(0.0, 1.0)) == [0, 0]
    assert PooledPolicy().nodes([rows[0][:0]], StepLoad(1, 0, 10), LinearTimes()) == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("off", {1: 0}), ("6", {1: 6}), ("1:16,8:4, 32:0", {1: 16, 8: 4, 32: 0})],
)
def test_schedules_are_read(text: str, expected: dict[int, int]) -> None:
    policy = parse_schedule(text)
    assert isinstance(policy, Schedule) and policy.nodes_by_load == expected
    assert parse_schedule("auto").name == "auto"


def test_names_of_schedules() -> None:
    names = [parse_schedule(text).name for text in ("off", "0", "6", "8:2,1:4", "auto")]
    assert names == ["off", "off", "K=6", "1:4 8:2", "auto"]
    assert Schedule({1: 3}, "mine").name == "mine"


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "-1", "2:4", "1:", "1:4,"])
def test_bad_schedules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_schedule(text)


def test_roofline_steps_are_the_data_sheets() -> None:
    times = RooflineTimes(DEVICES["h100"], LLAMA_8B, num_devices=2, overhead=0.002)
    load = StepLoad(num_decoding=4, num_nodes=8, decoding_context=4000)
    expected = 0.002 + roofline_seconds(DEVICES["h100"], LLAMA_8B, 4, 2.0, 1000) / 2
    assert times.seconds(load) == pytest.approx(float(expected))
    by_nodes = times.seconds_by_nodes(load, 8)
    assert by_nodes[8] == times.seconds(load)
    assert (np.diff(by_nodes) >= 0).all()
    reading = StepLoad(0, 0, 0, num_prefilling=1, prefill_tokens=8000, prefill_context=0)
    flops = 8000 * (2 * LLAMA_8B.num_params + 4 * 32 * 32 * 128 * 4000)
    assert times.seconds(reading) == pytest.approx(0.002 + flops / (989e12 * 0.6) / 2)


def test_experts_make_drafts_dearer_than_a_dense_model_of_the_same_size() -> None:
    dense = replace(MODEL_SHAPES["qwen3-30b-a3b"], expert_params=0.0, num_experts=1, num_chosen=1)
    load = StepLoad(1, 0, 1000)
    growth = []
    for shape in (dense, MODEL_SHAPES["qwen3-30b-a3b"]):
        seconds = RooflineTimes(DEVICES["h100"], shape, overhead=0.0).seconds_by_nodes(load, 8)
        growth.append(seconds[8] / seconds[0])
    assert growth[0] == pytest.approx(1.0)
    assert 3 < growth[1] < 7


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights \(141 GB\), got 1 x 80 GB"):
        RooflineTimes(DEVICES["h100"], MODEL_SHAPES["llama-3.3-70b"])
    assert RooflineTimes(DEVICES["h100"], MODEL_SHAPES["llama-3.3-70b"], 4).kv_tokens() > 10**5
    with pytest.raises(ValueError, match="num_devices"):
        RooflineTimes(DEVICES["h100"], LLAMA_8B, 0)
    server = Server(LinearTimes(), Schedule({1: 0}), ServerConfig(kv_tokens=32))
    with pytest.raises(ValueError, match="at most 32 tokens, got 40"):
        server.run([SimulatedRequest(0.0, empty_table(30, 10))])
    late = [SimulatedRequest(time, empty_table(3, 2)) for time in (1.0, 0.5)]
    with pytest.raises(ValueError, match="order of arrival"):
        server.run(late)
    for wrong in ({"max_requests": 0}, {"kv_tokens": 8}, {"block_size": 0}):
        with pytest.raises(ValueError, match="expected max_requests"):
            ServerConfig(**wrong)


def test_measured_steps_read_the_calibration() -> None:
    seconds = np.array([[[1.0, 2.0], [2.0, 4.0]], [[2.0, 3.0], [3.0, 5.0]]])
    calibration = Calibration("m", "vllm", "d", MEASURED, (100, 200), (1, 2), (0, 4), seconds)
    times = MeasuredTimes(calibration, prefill_seconds=0.01, prefill_base=0.5)
    assert times.seconds(StepLoad(2, 4, 300)) == pytest.approx(3.5)  # 2 nodes each at 150 tokens
    assert times.seconds(StepLoad(1, 0, 100, 1, 50)) == pytest.approx(1.5)
    assert times.seconds(StepLoad(0, 0, 0, 1, 50)) == pytest.approx(1.0)
    np.testing.assert_allclose(
        times.seconds_by_nodes(StepLoad(1, 0, 100), 4), np.arange(1, 2.1, 0.25)
    )


def test_gaps_are_exponential_and_scale_with_the_rate() -> None:
    times = poisson_arrivals(4.0, 20_000, seed=3)
    gaps = np.diff([0.0, *times])
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert (gaps > 0.25).mean() == pytest.approx(math.exp(-1), abs=0.02)
    np.testing.assert_allclose(poisson_arrivals(8.0, 100, 3), np.array(times[:100]) / 2)
    assert poisson_arrivals(math.inf, 3, 0) == [0.0, 0.0, 0.0]
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="rate above 0"):
            poisson_arrivals(rate, 3, 0)
    with pytest.raises(ValueError, match="at least one request"):
        open_loop([], 1.0, 3, 0)


def test_goodput_counts_requests_that_meet_both_limits() -> None:
    tables = [empty_table(5, 11)] * 2
    requests = [SimulatedRequest(0.0, tables[0]), SimulatedRequest(10.0, tables[1])]
    config = ServerConfig(max_requests=1, max_step_tokens=100)
    outcomes, totals = Server(LinearTimes(), Schedule({1: 0}), config).run(requests)
    for objective, good in (
        (Objective(1.0, 1.0), 1),  # the second one waits for a second longer
        (Objective(2.0, 1.0), 2),
        (Objective(2.0, 0.9), 0),
    ):
        result = summarize_simulation("off", 1.0, outcomes, totals, objective)
        assert (result.level.goodput, result.level.good_share) == (good / 22, good / 2)
    assert (result.level.throughput, result.tokens_per_step, result.busy_share) == (1.0, 1.0, 1.0)
    level = result.level
    assert (level.ttft_p50, level.tpot_p99, level.latency_mean) == (1.5, 1.0, 11.5)


def test_a_sweep_finds_that_drafts_pay_where_steps_are_flat_and_not_where_tokens_cost() -> None:
    tables = [random_table(seed, 20, 60) for seed in range(8)]
    policies = [parse_schedule(text) for text in ("off", "4", "auto")]
    config = SweepConfig(num_requests=20, server=ServerConfig(max_requests=8))
    done = []
    for times, winners in (
        (LinearTimes(1.0, 0.0), {"K=4", "auto"}),
        (LinearTimes(0.0, 1.0), {"off", "auto"}),
    ):
        rate = plain_capacity(tables, times, config)
        results = sweep(tables, times, policies, [0.2 * rate, rate], config, lambda: done.append(1))
        best = best_by_rate(results)
        assert list(best) == [0.2 * rate, rate]
        assert {result.policy for result in best.values()} <= winners
        assert best[rate].policy != ("off" if times.each == 0 else "K=4")
    assert len(done) == 12
    with pytest.raises(ValueError, match="different names"):
        sweep(tables, LinearTimes(), [policies[0], policies[0]], [1.0], config)
    with pytest.raises(ValueError, match="num_requests"):
        SweepConfig(num_requests=0)


def test_shapes_by_name_and_from_a_configuration(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape, known = model_shape(str(tmp_path)), model_shape("qwen3-30b-a3b")
    assert shape.num_params == pytest.approx(known.num_params, rel=0.01)
    assert shape.expert_params == known.expert_params
    assert shape.kv_bytes_per_token == known.kv_bytes_per_token
    assert shape.params_computed == pytest.approx(3.3e9, rel=0.03)
    dense = {key: config[key] for key in config if "experts" not in key and "moe" not in key}
    assert shape_of_config(dense | {"tie_word_embeddings": True}).expert_params == 0
    with pytest.raises(ShapeError, match="expected llama"):
        model_shape("gpt-17")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4}))
    with pytest.raises(ShapeError, match="num_hidden_layers"):
        model_shape(str(tmp_path / "config.json"))


def test_recorded_steps_follow_the_decode_loop() -> None:
    response = [1, 2, 3, 4, 5, 6, 7, 8]
    steps = record_steps(RandomTreeDrafter(0, [[9, *response]]), [9], response, max_nodes=3)
    assert steps.emitted.sum() == len(response) - 1
    assert (steps.emitted <= steps.drafted + 1).all()
    assert steps.contexts().tolist() == [
        1 + done for done in [0, *np.cumsum(steps.emitted)[:-1].tolist()]
    ]
    cut = record_steps(
        RandomTreeDrafter(0), [9], response, max_nodes=3, cut=lambda tree: tree.cut(0)
    )
    assert cut.drafted.sum() == 0 and cut.num_steps == len(response) - 1
    with pytest.raises(ValueError, match="expected a prompt"):
        record_steps(RandomTreeDrafter(0), [], response, max_nodes=3)
