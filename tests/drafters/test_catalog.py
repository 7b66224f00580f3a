from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import freedraft
from freedraft.drafters.catalog import is_drafter_name
from freedraft.drafters.corpus.index import build_index
from freedraft.drafters.corpus.pool_file import PoolDescription, tokenizer_fingerprint, write_pool
from freedraft.drafters.snapshot import SnapshotError

FINGERPRINT = tokenizer_fingerprint({"a": 0, "b": 1})


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "counting.pool"
    documents = [np.arange(10, 30, dtype=np.int32)]
    write_pool(path, build_index(documents), PoolDescription("tiny", FINGERPRINT, 1, 40))
    return path


@pytest.mark.parametrize("name", freedraft.DRAFTER_NAMES)
def test_each_name_makes_a_drafter_of_that_name(name: str) -> None:
    drafter = freedraft.create_drafter(name)
    assert drafter.name == name
    assert isinstance(drafter, freedraft.Drafter)
    assert is_drafter_name(name)


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"among ngram, .*, corpus:FILE.pool, got 'gram'"):
        freedraft.create_drafter("gram")
    assert not is_drafter_name("gram")


def test_a_pool_is_a_name(pool: Path) -> None:
    name = f"corpus:{pool}"
    assert is_drafter_name(name)
    drafter = freedraft.create_drafter(name, FINGERPRINT)
    drafter.start("a", [3, 15, 16, 17])
    (tree,) = drafter.propose(["a"], 3, 3)
    assert tree.best_chain().token_ids.tolist() == [18, 19, 20]


def test_a_pool_of_another_tokenizer_or_none_is_refused(pool: Path) -> None:
    with pytest.raises(SnapshotError, match="tokenizer"):
        freedraft.create_drafter(f"corpus:{pool}", tokenizer_fingerprint({"c": 0}))
    with pytest.raises(OSError, match=r"missing\.pool"):
        freedraft.create_drafter(f"corpus:{pool.parent}/missing.pool")
