"""The arrays in which the n-gram drafter's kernels work: how large, and where everything begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..calibration import Calibration
from ..untouched import untouched_zeros
from . import _ingest_kernels as ingester
from . import _pool_kernels as pool
from . import _search_kernels as finder
from . import _tree_kernels as grower
from . import _weights as tables
from ._pool_kernels import FloatArray, IntArray
from .config import NgramConfig


@dataclass(frozen=True, slots=True)
class Arena:
    """All memory of a drafter.

    Attributes:
        ints: int32, as ``_pool_kernels`` lays it out.
        floats: float64, as ``_weights`` lays it out; a part of the same memory.
        pages: ``(num_pages, PAGE_FIELDS)``, a view of the pages' fields.
        rows: ``(num_rows, ROW_FIELDS)``, a view of the requests' rows.
        drafts: ``(num_rows, DRAFT_ROOM)``, a view of their last drafts.
    """

    ints: IntArray
    floats: FloatArray
    pages: IntArray
    rows: IntArray
    drafts: IntArray


def new_arena(config: NgramConfig) -> Arena:
    """Return the arena of a config, without tokens."""
    num_pages = config.capacity // config.page_size
    num_slots = num_pages * config.page_size
    num_levels = len(config.levels)
    num_rows = min(config.max_requests, num_pages)
    bucket_bits = max(num_slots // pool.TOKENS_A_BUCKET, 1).bit_length() - 1
    num_visits = sum(config.max_visits) + config.max_skip_visits * num_levels
    search_size = _whole_lines(finder.MET + num_visits)
    searches = finder.SEARCHES + finder.GROUP * search_size
    max_groups = config.max_places + grower.MAX_NODES + 1  # of a tree that is grown in the room
    num_floats = tables.PLACES + config.max_places + max_groups * grower.SCORE_FIELDS
    stop = pool.HEADER_SIZE + _whole_lines(num_slots)
    starts = {}
    # What every step reads comes last and together: the fewer pages of memory it lies in, the
    # fewer of their addresses must be looked up after the model's turn.
    for region, size in (
        (pool.LINKS_AT, num_slots * num_levels),
        (pool.HEADS_AT, num_levels << bucket_bits),
        (pool.PAGES_AT, num_pages * pool.PAGE_FIELDS),
        (pool.FLOATS_AT, 2 * num_floats),
        (pool.ROWS_AT, num_rows * pool.ROW_FIELDS),
        (
            pool.ROOM_AT,
            max(
                ingester.LANES * (ingester.BUCKETS + ingester.BLOCK * num_levels),
                searches + max_groups * grower.GROUP_FIELDS,
            ),
        ),
        (pool.DRAFTS_AT, num_rows * pool.DRAFT_ROOM),
        (pool.PLACES_AT, config.max_places * pool.PLACE_FIELDS),
    ):
        starts[region] = stop
        stop += _whole_lines(size)
    ints = untouched_zeros(stop, huge_pages=True)  # every region fills from its start on
    page_bits = config.page_size.bit_length() - 1
    num_buckets = min(pool.MIN_BUCKETS, 1 << bucket_bits)
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
        pool.NUM_BUCKETS: num_buckets,
        pool.HALF: num_buckets,
    } | {region: start >> pool.LINE_BITS for region, start in starts.items()}
    for field, value in header.items():
        ints[field] = value
    for first, values in (
        (pool.FIRST_LEVEL, config.levels),
        (pool.FIRST_VISITS, config.max_visits),
        (pool.FIRST_WEIGHT, [pow(pool.HASH_BASE, k, pool.PRIME) for k in config.levels]),
    ):
        ints[first : first + len(values)] = values
    floats = ints[starts[pool.FLOATS_AT] :][: 2 * num_floats].view(np.float64)
    floats[: tables.NUM_WEIGHTS] = tables.make_model()
    return Arena(
        ints,
        floats,
        ints[starts[pool.PAGES_AT] :][: num_pages * pool.PAGE_FIELDS].reshape(num_pages, -1),
        ints[starts[pool.ROWS_AT] :][: num_rows * pool.ROW_FIELDS].reshape(num_rows, -1),
        ints[starts[pool.DRAFTS_AT] :][: num_rows * pool.DRAFT_ROOM].reshape(num_rows, -1),
    )


def _whole_lines(size: int) -> int:
    """Return ``size`` rounded up to whole cache lines."""
    return -(-size >> pool.LINE_BITS) << pool.LINE_BITS


def calibration_within(floats: FloatArray) -> Calibration:
    """Return a calibration whose maps and counts lie where the kernels look for them."""
    calibration = Calibration(tables.NUM_CLASSES, tables.KNOTS + 1)
    shape = (tables.NUM_CLASSES, tables.KNOTS + 1)
    calibration.knots = floats[tables.MAPS : tables.COUNTS].reshape(shape)
    calibration.counts = floats[tables.COUNTS : tables.PLACES].reshape(*shape, 2)
    calibration.refit()
    return calibration
