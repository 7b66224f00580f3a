"""Snapshots: whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freedraft.drafters.snapshot import DTYPES, SnapshotError, read_snapshot, write_snapshot

OLD = {"tokens": np.arange(300, dtype=np.int32)}
NEW = {"tokens": np.arange(5000, dtype=np.int32)[::-1].copy()}

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.sampled_from(DTYPES), shapes), max_size=4))
def test_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, layout: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    path = tmp_path_factory.mktemp("pool") / "some.pool"
    arrays = {
        name: np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
        for name, (dtype, shape) in layout.items()
    }
    metadata = {"ä": "ö", "number": 3, "share": 0.5, "flag": True}
    write_snapshot(path, "kind", arrays, metadata)
    snapshot = read_snapshot(path, "kind")
    assert snapshot.metadata == metadata
    assert snapshot.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert snapshot.arrays[name].dtype == array.dtype
        assert not snapshot.arrays[name].flags.writeable
        np.testing.assert_array_equal(snapshot.arrays[name], array)


def test_arrays_are_mapped_and_aligned(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "a", "kind", {"x": OLD["tokens"], "y": NEW["tokens"]}, {})
    for array in read_snapshot(tmp_path / "a", "kind").arrays.values():
        assert array.ctypes.data % 64 == 0
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.memmap)


def test_refuses_another_kind(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "a", "suffix", OLD, {})
    with pytest.raises(SnapshotError, match=r"kind 'corpus', got 'suffix': .*a$"):
        read_snapshot(tmp_path / "a", "corpus")


def test_refuses_every_truncation_and_every_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.pool"
    write_snapshot(path, "kind", {"x": np.arange(7, dtype=np.int32)}, {"n": 1})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SnapshotError, match=r"a\.pool"):
            read_snapshot(path, "kind")
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x21
        path.write_bytes(broken)
        with pytest.raises(SnapshotError, match=r"a\.pool"):
            read_snapshot(path, "kind")
    path.write_bytes(whole + b"x")
    with pytest.raises(SnapshotError, match="bytes"):
        read_snapshot(path, "kind")
    path.write_bytes(whole)
    read_snapshot(path, "kind")


def test_refuses_a_foreign_file_and_reports_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello " * 50)
    with pytest.raises(SnapshotError, match=r"another kind of file: .*notes\.txt"):
        read_snapshot(path, "kind")
    with pytest.raises(FileNotFoundError):
        read_snapshot(tmp_path / "nothing", "kind")


def test_refuses_arrays_that_cannot_be_mapped(tmp_path: Path) -> None:
    for array in (np.array(["a"], object), np.zeros((4, 4), np.int32)[:, ::2]):
        with pytest.raises(ValueError, match="expected x C-contiguous"):
            write_snapshot(tmp_path / "a", "kind", {"x": array}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_snapshot(path, "kind", OLD, {})

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_snapshot(path, "kind", NEW, {})
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_array_equal(read_snapshot(path, "kind").arrays["tokens"], OLD["tokens"])


def test_removes_what_killed_writers_left_long_ago(tmp_path: Path) -> None:
    stale, fresh, other = (tmp_path / name for name in (".a.1.tmp", ".a.2.tmp", ".b.1.tmp"))
    for entry in (stale, fresh, other):
        entry.write_bytes(b"part")
    os.utime(stale, (0, 0))
    os.utime(other, (0, 0))
    write_snapshot(tmp_path / "a", "kind", OLD, {})
    assert sorted(tmp_path.iterdir()) == sorted([fresh, other, tmp_path / "a"])


KILLED_WRITER = """
import os, pathlib, signal, sys
import numpy as np
from freedraft.drafters import snapshot

path, place = sys.argv[1], sys.argv[2]

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

class DyingHash:
    def __init__(self, head): self.parts = 0
    def update(self, piece):
        self.parts += 1
        if self.parts == 4:
            die()
    def digest(self): return bytes(32)

def rename_and_die(source, target):
    os.rename(source, target)
    die()

if place == "before the rename":
    pathlib.Path.replace = die
elif place == "after the rename":
    pathlib.Path.replace = rename_and_die
elif place == "at the flush":
    os.fsync = die
else:
    snapshot.hashlib.sha256 = DyingHash
snapshot.write_snapshot(path, "kind", {"tokens": np.arange(5000, dtype=np.int32)[::-1].copy()}, {})
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
@pytest.mark.parametrize(
    ("place", "survivor"),
    [
        ("while writing", OLD),
        ("at the flush", OLD),
        ("before the rename", OLD),
        ("after the rename", NEW),
    ],
)
def test_a_killed_writer_leaves_the_old_snapshot_or_the_new_one(
    tmp_path: Path, place: str, survivor: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "a"
    write_snapshot(path, "kind", OLD, {})
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path), place], check=False)
    assert killed.returncode == -signal.SIGKILL
    found = read_snapshot(path, "kind").arrays["tokens"]
    np.testing.assert_array_equal(found, survivor["tokens"])
