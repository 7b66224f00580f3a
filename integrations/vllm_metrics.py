"""Counts from a worker of vLLM to the front end whose ``/metrics`` is scraped.

The worker that drafts is often another process than the front end, and vLLM has no channel for a
proposer's own counts. So each worker keeps a small mapped file, named by its process, that says
which processes it descends from; a collector in the front end's Prometheus registry reads the files
of its own descendants. Nothing is written or shown where freedraft is not in use.
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .metrics import METRICS
from .statistics import GenerationStatistics

_KEYS = (
    "steps",
    "emitted",
    "drafted",
    "accepted",
    "switched_off",
    "draft_seconds",
    "tokens_per_step",
    "drafted_per_step",
    "acceptance_rate",
)
"""The statistics that an engine's worker knows, in the order of the file."""
_POOL_METRIC = (
    "freedraft_pool_bytes",
    "Bytes that the tokens of requests and finished responses take.",
)
_MAGIC = b"frdmetr1"
_MAX_ANCESTORS = 16
_HEAD = struct.Struct(f"<8sqq{_MAX_ANCESTORS}q")  # magic, writes begun, label, ancestors
_VALUES = struct.Struct(f"<q{len(_KEYS) + 1}d")  # writes finished, values
_COUNTER = struct.Struct("<q")
_SUFFIX = ".metrics"


class MetricsFile:
    """Writes one worker's counts; does nothing where the file cannot be made."""

    def __init__(self, engine_index: int, folder: Path | None = None) -> None:
        """Make the file.

        Args:
            engine_index: the data-parallel rank, the label of the counts.
            folder: where; the user's own folder for such files when absent.
        """
        self._num_writes = 0
        self._map: mmap.mmap | None = None
        try:
            self._path = _own_folder(folder) / f"{os.getpid()}-{id(self):x}{_SUFFIX}"
            with self._path.open("w+b") as file:
                file.truncate(_HEAD.size + _VALUES.size)
                self._map = mmap.mmap(file.fileno(), _HEAD.size + _VALUES.size)
        except OSError:
            return
        ancestors = [*_ancestors(), *[0] * _MAX_ANCESTORS][:_MAX_ANCESTORS]
        _HEAD.pack_into(self._map, 0, _MAGIC, 0, engine_index, *ancestors)

    def write(self, statistics: GenerationStatistics, num_pool_bytes: int) -> None:
        """Write the counts, so that a reader sees all of them or knows that it does not."""
        if self._map is None:
            return
        self._num_writes += 1
        _COUNTER.pack_into(self._map, len(_MAGIC), self._num_writes)
        numbers = [getattr(statistics, key) for key in _KEYS]
        _VALUES.pack_into(self._map, _HEAD.size, self._num_writes, *numbers, num_pool_bytes)

    def close(self) -> None:
        """Remove the file; a second call does nothing."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self._path.unlink(missing_ok=True)


class MetricsCollector:
    """Reads the files of this process and of its descendants, for a Prometheus registry."""

    def __init__(self, folder: Path | None = None) -> None:
        """Name the folder; :class:`MetricsFile` says which by default."""
        self._folder = folder

    def describe(self) -> list[Any]:
        """Return the families without samples: names are told without reading a file."""
        return list(_families().values())

    def collect(self) -> Iterator[Any]:
        """Return the families with a sample for each worker; nothing while there is no worker."""
        rows = read_metrics(self._folder)
        if not rows:
            return
        families = _families()
        for engine_index, values in rows:
            for key, value in values.items():
                families[key].add_metric([str(engine_index)], value)
        yield from families.values()


def read_metrics(folder: Path | None = None) -> list[tuple[int, dict[str, float]]]:
    """Return the engine index and the counts of each living worker below this process."""
    try:
        paths = sorted(_own_folder(folder).glob(f"*{_SUFFIX}"))
    except OSError:
        return []
    rows = []
    for path in paths:
        if not _is_alive(int(path.name.partition("-")[0])):
            path.unlink(missing_ok=True)  # it was killed and could not
            continue
        row = _read(path)
        if row is not None:
            rows.append(row)
    return rows


@functools.cache
def install_collector() -> None:
    """Put the collector into this process's Prometheus registry, once."""
    from prometheus_client import REGISTRY

    REGISTRY.register(MetricsCollector())


def _read(path: Path) -> tuple[int, dict[str, float]] | None:
    """Return a file's counts, ``None`` if they are no descendant's or are being written."""
    for _ in range(3):
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) != _HEAD.size + _VALUES.size:
            return None
        magic, begun, engine_index, *ancestors = _HEAD.unpack_from(data)
        if magic != _MAGIC or os.getpid() not in ancestors:
            return None
        finished, *values = _VALUES.unpack_from(data, _HEAD.size)
        if begun == finished:
            return engine_index, dict(zip((*_KEYS, "pool_bytes"), values, strict=True))
    return None


def _families() -> dict[str, Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    families: dict[str, Any] = {}
    for metric in METRICS:
        if metric.key in _KEYS:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            families[metric.key] = family(metric.prometheus, metric.help, labels=["engine"])
    families["pool_bytes"] = GaugeMetricFamily(*_POOL_METRIC, labels=["engine"])
    return families


def _own_folder(folder: Path | None) -> Path:
    """Return the folder, made if need be.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    path = folder or Path(tempfile.gettempdir()) / f"freedraft-metrics-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"expected {path} to be this user's own folder")
    return path


def _ancestors() -> list[int]:
    """Return the process ids of this process and of those that it descends from, nearest first."""
    pids = [os.getpid()]
    parent = os.getppid()
    while parent > 0 and len(pids) < _MAX_ANCESTORS:
        pids.append(parent)
        try:
            stat = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break  # another system: the nearest two are known
        parent = int(stat.rpartition(")")[2].split()[1])
    return pids


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
