"""The arrays in which the n-gram drafter's kernels work: how large, and where everything begins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..calibration import Calibration
from ..tree import IntArray
from ..untouched import untouched_zeros
from . import _ingest_kernels as ingester
from . import _pool_kernels as pool
from . import _search_kernels as finder
from . import _tree_kernels as grower
from . import _weights as tables
from .config import NgramConfig


def new_arena(config: NgramConfig) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the arena of a config, and the views of its pages, its requests' rows and drafts."""
    num_pages = config.capacity // config.page_size
    num_slots = num_pages * config.page_size
    num_levels = len(config.levels)
    num_rows = min(config.max_requests, num_pages)
    bucket_bits = num_slots.bit_length() - 1  # a bucket for one or two tokens
    num_visits = sum(config.max_visits) + config.max_skip_visits * num_levels
    search_size = _whole_lines(finder.MET + num_visits)
    searches = finder.SEARCHES + finder.GROUP * search_size
    starts = [pool.HEADER_SIZE]  # of the tokens, and then of the regions behind them
    for size in (
        num_slots,
        num_slots * num_levels,
        num_levels << bucket_bits,
        num_pages * pool.PAGE_FIELDS,
        num_rows * pool.ROW_FIELDS,
        num_rows * pool.DRAFT_ROOM,
        num_rows * config.max_places * pool.PLACE_FIELDS,
        max(ingester.BLOCK * num_levels, searches + _max_groups(config) * grower.GROUP_FIELDS),
    ):
        starts.append(starts[-1] + _whole_lines(size))
    arena = untouched_zeros(starts[-1], huge_pages=True)  # every region fills from its start on
    page_bits = config.page_size.bit_length() - 1
    header = {
        pool.NUM_PAGES: num_pages,
        pool.PAGE_BITS: page_bits,
        pool.SLOT_BITS: page_bits + (num_pages - 1).bit_length(),
        pool.BUCKET_BITS: bucket_bits,
        pool.NUM_LEVELS: num_levels,
        pool.NUM_ROWS: num_rows,
        pool.QUEUE_HEAD: pool.NONE,
        pool.QUEUE_TAIL: pool.NONE,
        pool.MAX_MATCH: config.max_match,
        pool.MAX_SKIP_VISITS: config.max_skip_visits,
        pool.MAX_PLACES: config.max_places,
        pool.SEARCH_SIZE: search_size,
    }
    for field, value in header.items():
        arena[field] = value
    arena[[pool.NUM_BUCKETS, pool.HALF]] = min(pool.MIN_BUCKETS, 1 << bucket_bits)
    for first, values in (
        (pool.FIRST_LEVEL, config.levels),
        (pool.FIRST_VISITS, config.max_visits),
        (pool.LINKS_AT, [start >> pool.LINE_BITS for start in starts[1:-1]]),
        (pool.FIRST_WEIGHT, [pow(pool.HASH_BASE, k, pool.PRIME) for k in config.levels]),
    ):
        arena[first : first + len(values)] = values
    pages_start, rows_start, drafts_start = starts[3:6]
    pages = arena[pages_start:][: num_pages * pool.PAGE_FIELDS].reshape(num_pages, -1)
    rows = arena[rows_start:][: num_rows * pool.ROW_FIELDS].reshape(num_rows, -1)
    return (
        arena,
        pages,
        rows,
        arena[drafts_start:][: num_rows * pool.DRAFT_ROOM].reshape(num_rows, -1),
    )


def _whole_lines(size: int) -> int:
    """Return ``size`` rounded up to whole cache lines."""
    return -(-size >> pool.LINE_BITS) << pool.LINE_BITS


def _max_groups(config: NgramConfig) -> int:
    """Return how many groups of places a tree may need that is grown in the arena's room."""
    return config.max_places + grower.MAX_NODES + 1


def new_floats(config: NgramConfig, num_rows: int) -> npt.NDArray[np.float64]:
    """Return the weights, with room behind them, as the kernels take them."""
    size = num_rows * config.max_places + _max_groups(config) * grower.SCORE_FIELDS
    floats = np.zeros(tables.PLACES + size)
    floats[: tables.NUM_WEIGHTS] = tables.make_model()
    return floats


def calibration_within(floats: npt.NDArray[np.float64]) -> Calibration:
    """Return a calibration whose maps and counts lie where the kernels look for them."""
    calibration = Calibration(tables.NUM_CLASSES, tables.KNOTS + 1)
    shape = (tables.NUM_CLASSES, tables.KNOTS + 1)
    calibration.knots = floats[tables.MAPS : tables.COUNTS].reshape(shape)
    calibration.counts = floats[tables.COUNTS : tables.PLACES].reshape(*shape, 2)
    calibration.refit()
    return calibration
