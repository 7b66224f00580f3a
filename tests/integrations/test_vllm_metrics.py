"""Counts reach the process that is scraped, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from freedraft.integrations.statistics import GenerationStatistics
from freedraft.integrations.vllm_metrics import MetricsCollector, MetricsFile, read_metrics

CHILD = """
import os, sys
from pathlib import Path
from freedraft.integrations.statistics import GenerationStatistics
from freedraft.integrations.vllm_metrics import MetricsFile
file = MetricsFile(3, Path(sys.argv[1]))
file.write(GenerationStatistics(steps=5, emitted=9, drafted=8, accepted=4), 100)
print("written", flush=True)
sys.stdin.readline()
os._exit(1)  # as if killed: the file stays behind
"""


def test_own_counts_are_read_whole(tmp_path: Path) -> None:
    file = MetricsFile(0, tmp_path)
    assert read_metrics(tmp_path) == [(0, dict.fromkeys(read_metrics(tmp_path)[0][1], 0.0))]
    file.write(GenerationStatistics(steps=2, emitted=6, drafted=5, accepted=4), 1234)
    ((engine, values),) = read_metrics(tmp_path)
    assert engine == 0
    assert values["drafted"] == 5 and values["accepted"] == 4
    assert values["tokens_per_step"] == 3.0 and values["pool_bytes"] == 1234
    file.close()
    file.close()
    file.write(GenerationStatistics(), 0)
    assert read_metrics(tmp_path) == []


def test_half_written_counts_are_not_shown(tmp_path: Path) -> None:
    file = MetricsFile(0, tmp_path)
    file.write(GenerationStatistics(), 0)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[8] += 1  # a write has begun
    path.write_bytes(data)
    assert read_metrics(tmp_path) == []
    file.close()


def test_a_childs_counts_are_read_until_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "written\n"
        ((engine, values),) = read_metrics(tmp_path)
        assert (engine, values["steps"], values["pool_bytes"]) == (3, 5.0, 100.0)
        child.stdin.write("\n")
        child.stdin.close()
        child.wait()
    assert read_metrics(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_strangers_files_are_not_read(tmp_path: Path) -> None:
    file = MetricsFile(0, tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[24 : 24 + 8 * 16] = bytes(8 * 16)  # descends from nobody
    path.write_bytes(data)
    assert read_metrics(tmp_path) == []
    file.close()
    (tmp_path / f"{os.getpid()}-0.metrics").write_bytes(b"short")
    assert read_metrics(tmp_path) == []


def test_a_folder_that_cannot_be_used_costs_the_counts_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    file = MetricsFile(0, blocked)
    file.write(GenerationStatistics(), 0)
    file.close()
    assert read_metrics(blocked) == []


def test_the_collector_speaks_prometheus(tmp_path: Path) -> None:
    prometheus_client = pytest.importorskip(
        "prometheus_client", reason="prometheus_client comes with vLLM"
    )
    registry = prometheus_client.CollectorRegistry()
    registry.register(MetricsCollector(tmp_path))
    assert prometheus_client.generate_latest(registry) == b""
    file = MetricsFile(1, tmp_path)
    file.write(GenerationStatistics(steps=2, emitted=6, drafted=5, accepted=4), 64)
    text = prometheus_client.generate_latest(registry).decode()
    assert 'freedraft_drafted_tokens_total{engine="1"} 5.0' in text
    assert 'freedraft_tokens_per_step{engine="1"} 3.0' in text
    assert 'freedraft_pool_bytes{engine="1"} 64.0' in text
    file.close()
