"""Creates the examples of the folds that trials train on, once per worker process."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

from sluice.base.seeding import RandomStream
from sluice.data.folds import Fold
from sluice.data.rows.protocol import DictRows, RowSource
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFold:
    """Train and validation examples of one fold, and the workload that created them."""

    workload: Workload
    """Workload of a single trial. It is a copy if possible, because a workload may store state."""
    train: Examples
    val: Examples
    rng_state: Mapping[str, Tensor]
    """State of the random generators after the examples were created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CacheEntry:
    """A prepared fold in the cache."""

    fold: PreparedFold
    tensor_versions: tuple[int, ...]
    """In-place version counters of the fold's tensors when the tensors were created."""


_cache: dict[str, dict[str, _CacheEntry]] = {}
"""Prepared folds, by the JSON text of ``key`` and ``seed`` (arguments of ``prepare_fold``), and by
the JSON text of the rows. Only the last ``key`` and ``seed`` are kept."""


def prepare_fold(
    frame: pd.DataFrame,
    fold: Fold,
    *,
    open_workload: Callable[[], Workload],
    key: Mapping[str, Any],
    seed: int,
) -> PreparedFold:
    """Return the examples of a fold, from the cache of this process if it contains them.

    The cache contains the folds of one key and seed; a call with another key or seed replaces the
    folds. No examples are created from test rows.

    Args:
        frame: Feature frame. It is copied, because arrays from Ray's object store are read-only.
        fold: Train and validation rows.
        open_workload: Builds a workload.
        key: Everything that determines the examples, except the fold and ``seed``, as plain JSON.
        seed: Seed of the random numbers that the workload uses while it creates examples.
    """
    key_text = json.dumps([dict(key), seed], sort_keys=True, default=str)
    rows_text = fold.model_dump_json(include={"train", "val"})
    entries = _cache.get(key_text, {})
    entry = entries.get(rows_text)
    # Create the examples again if a network has modified its inputs, and with them the cached
    # tensors, in place.
    if entry is None or entry.tensor_versions != _tensor_versions(entry.fold):
        entry = _create_entry(frame, fold, open_workload(), seed)
        _cache.clear()
        _cache[key_text] = {**entries, rows_text: entry}
    try:
        workload = copy.deepcopy(entry.fold.workload)
    except Exception:  # a user class may contain an object that cannot be copied, e.g. an open file
        _cache.clear()
        workload = entry.fold.workload
    return PreparedFold(
        workload=workload,
        train=entry.fold.train,
        val=entry.fold.val,
        rng_state=entry.fold.rng_state,
    )


def _create_entry(frame: pd.DataFrame, fold: Fold, workload: Workload, seed: int) -> _CacheEntry:
    frame, stream = frame.copy(), RandomStream(seed)
    with stream.active():
        workload = fit_workload(workload, frame, fold)
        train, val = workload.examples(frame, fold.train), workload.examples(frame, fold.val)
    prepared = PreparedFold(workload=workload, train=train, val=val, rng_state=stream.state)
    return _CacheEntry(fold=prepared, tensor_versions=_tensor_versions(prepared))


def _tensor_versions(fold: PreparedFold) -> tuple[int, ...]:
    """Return torch's in-place version counter of each tensor of the examples.

    Row sources without tensors are skipped, because they read their rows again for every batch.
    """
    return tuple(
        tensor._version
        for examples in (fold.train, fold.val)
        for rows in (examples.x, examples.y)
        for tensor in _tensors(rows)
    )


def _tensors(rows: Tensor | RowSource) -> Iterable[Tensor]:
    if isinstance(rows, DictRows):
        return rows.tensors.values()
    return [rows] if isinstance(rows, Tensor) else []
