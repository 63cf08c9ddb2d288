"""Map-style data sets of torch or Hugging Face, as the input of a network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.base.settings import suggest_nearest
from sluice.data.rows.positions import check_positions
from sluice.data.rows.protocol import ModelInput, describe_input

Field = int | str | tuple[str, ...]
"""Part of an item: a position in a tuple, a key of a dict, or several keys."""


class DatasetRows:
    """Items of any data set with ``__len__`` and ``__getitem__(int)``, stacked to batches.

    Items may be tensors, arrays, numbers, lists of numbers, or dicts or tuples of these. The first
    item is the reference: another shape, dtype or set of keys is an error that names the row.
    Python integers become int64, and Python floats float32. An item must be the same whenever it is
    read; random augmentation belongs to the training, not to the data set.

    Args:
        dataset: The data set. It is pickled with the source, so its class must be importable.
        field: Part of every item that is returned. By default the whole item is returned, which
            must not be a tuple. ``DatasetRows.pair`` returns inputs and targets.

    Raises:
        ContractError: The data set is a stream or empty, or its first item cannot be a tensor or
            differs when it is read again.
    """

    def __init__(self, dataset: Any, *, field: Field | None = None) -> None:
        self._items, self._field = _Items(dataset), field
        self._reference = self._read([0])[0]
        self._items.forget()
        repeated = self._read([0])[0]
        if not _are_equal(self._reference, repeated):
            raise ContractError(
                "An item of a data set must be the same whenever it is read, but item 0 differs.",
                cause="The data set applies a random augmentation.",
                fix="Remove the augmentation from the data set, and write it as augment() of the "
                "workload, where random numbers are derived from seed, epoch and row.",
            )

    @classmethod
    def pair(cls, dataset: Any, *, target: int | str) -> "tuple[DatasetRows, DatasetRows]":
        """Return inputs and targets of a data set as two sources.

        Both share the last batch that was read, so each item of a batch is read only once.

        Args:
            dataset: The data set; its items are pairs, or dicts.
            target: Position of the target in the pair, or its key. The inputs are the other part,
                or a dict of the other keys.

        Raises:
            ContractError: The data set is a stream or empty, an item has no such part, or the first
                item cannot be a tensor or differs when it is read again.
        """
        items = _Items(dataset)
        first_item = items.read([0])[0]
        if isinstance(first_item, Mapping) and target in first_item and len(first_item) > 1:
            field: Field = tuple(str(key) for key in first_item if key != target)
        elif isinstance(first_item, tuple | list) and len(first_item) == 2 and target in (0, 1):
            field = 1 - int(target)
        else:
            raise ContractError(
                "Items must be pairs, or dicts with the key of the target and another key, got "
                f"target={target!r} and the item {_describe_item(first_item)}.",
                fix="Name the position 0 or 1 of the target, or its key; or build both sources "
                "with field=....",
            )
        x, y = cls(dataset, field=field), cls(dataset, field=target)
        x._items = y._items = items
        return x, y

    def __len__(self) -> int:
        return self._items.num_rows

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        positions = check_positions(rows, len(self)).tolist()
        items = self._read(positions)
        if isinstance(self._reference, Tensor):
            return _stack_items(items, self._reference, positions)
        for row, item in zip(positions, items, strict=True):
            if isinstance(item, Tensor) or _shapes_and_dtypes(item) != _shapes_and_dtypes(
                self._reference
            ):
                raise _mismatch_error(item, self._reference, row)
        return {
            name: _stack([item[name] for item in items], part)
            for name, part in self._reference.items()
        }

    def _read(self, rows: Sequence[int]) -> list[Any]:
        items = self._items.read(rows)
        field = self._field
        # For tuples of tensors, the usual items, this avoids a function call per item.
        if isinstance(field, int) and {type(item) for item in items} == {tuple}:
            parts = [item[field] for item in items if len(item) > field]
            if len(parts) == len(items) and {type(part) for part in parts} == {Tensor}:
                return parts
        return [_select_part(item, field, row) for row, item in zip(rows, items, strict=True)]


class _Items:
    """Reads items of a data set; the last batch is kept for the source of the targets."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")) or isinstance(
            dataset, torch.utils.data.IterableDataset
        ):
            raise ContractError(
                f"A data set needs __len__ and __getitem__, but {type(dataset).__name__} is a "
                "stream.",
                cause="The rows of a stream cannot be read in another order, nor from the middle "
                "of an epoch.",
                fix="Write it once to shards with random access: sluice pack SOURCE DIR. Then "
                "read them with ShardRows, ImageShardRows or TableRows.",
            )
        self.num_rows = len(dataset)
        if not self.num_rows:
            raise ContractError(
                f"A data set must have at least one item, but {type(dataset).__name__} is empty.",
                fix="Check the path and the split of the data set.",
            )
        self._last_batch: tuple[list[int], list[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last_batch": None}

    def forget(self) -> None:
        """Drop the last batch, so that the next ``read`` gets its items from the data set."""
        self._last_batch = None

    def read(self, rows: Sequence[int]) -> list[Any]:
        """Return the items of the rows.

        Raises:
            ContractError: The data set has another length than before, or cannot be indexed.
        """
        last_batch, positions = self._last_batch, list(rows)
        if len(self.dataset) != self.num_rows:
            raise ContractError(
                f"The length of a data set must not change, but {type(self.dataset).__name__} had "
                f"{self.num_rows} items and now has {len(self.dataset)}.",
                cause="Files were added or removed while it was in use.",
                fix="Copy the data to a folder that does not change, or list its files once.",
            )
        if last_batch is not None and last_batch[0] == positions:
            return last_batch[1]
        read_many = getattr(self.dataset, "__getitems__", None)
        try:
            items = read_many(positions) if read_many else [self.dataset[row] for row in positions]
        except (KeyError, NotImplementedError) as error:
            raise ContractError(
                f"{type(self.dataset).__name__} cannot be indexed by a row number "
                f"({type(error).__name__}: {error}).",
                cause="It is a dict of several splits, or a stream.",
                fix="Choose a split, such as dataset['train'], or write the stream to shards: "
                "sluice pack SOURCE DIR",
            ) from None
        self._last_batch = positions, list(items)
        return self._last_batch[1]


def _select_part(item: Any, field: Field | None, row: int) -> ModelInput:
    """Return the chosen part of an item as a tensor, or as tensors by name."""
    if isinstance(field, tuple):
        return {name: _as_tensor(_get_part(item, name, row), row, f" '{name}'") for name in field}
    part = item if field is None else _get_part(item, field, row)
    if not isinstance(part, Mapping):
        return _as_tensor(part, row, "")
    return {str(name): _as_tensor(value, row, f" '{name}'") for name, value in part.items()}


def _get_part(item: Any, field: int | str, row: int) -> Any:
    try:
        return item[field]
    except (KeyError, IndexError, TypeError):
        hint = (
            suggest_nearest(str(field), [str(key) for key in item])
            if isinstance(item, Mapping)
            else ""
        )
        raise ContractError(
            f"Item {row} has no part {field!r}; it is {_describe_item(item)}.{hint}",
            fix="Name a key of the dict or a position of the tuple.",
        ) from None


def _as_tensor(value: Any, row: int, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))  # a copy: the array may be read-only
    if isinstance(value, bool | int | float):
        return torch.tensor(value)
    if isinstance(value, list):
        try:
            return torch.tensor(value)
        except (ValueError, TypeError):
            pass
    raise ContractError(
        f"Item {row}{name} must be a tensor, an array or numbers, got {_describe_item(value)}.",
        cause="The value cannot be converted to a tensor."
        if not isinstance(value, tuple)
        else "The item is a tuple, such as a pair of input and target.",
        fix="Choose a part with field=..., get inputs and targets with DatasetRows.pair(dataset, "
        "target=...), or let the data set return tensors (Hugging Face: "
        "dataset.with_format('torch')).",
    )


def _mismatch_error(item: ModelInput, reference: ModelInput, row: int) -> ContractError:
    return ContractError(
        f"All items must be like item 0, {describe_input(reference)}, but item {row} is "
        f"{describe_input(item)}.",
        cause="The items of a batch are stacked to one tensor.",
        fix="Let the data set return one shape, dtype and set of keys. For texts of different "
        "lengths write the token ids with write_tokens, and use TokenRows.",
    )


def _shapes_and_dtypes(item: Mapping[str, Tensor]) -> dict[str, object]:
    return {name: (part.shape, part.dtype) for name, part in item.items()}


def _are_equal(first: ModelInput, second: ModelInput) -> bool:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return (
            isinstance(first, Tensor)
            and isinstance(second, Tensor)
            and first.shape == second.shape
            and bool(torch.allclose(first.double(), second.double(), 0, 0, equal_nan=True))
        )
    return first.keys() == second.keys() and all(_are_equal(first[k], second[k]) for k in first)


def _stack_items(items: Sequence[Any], reference: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the items as one tensor; raise an error that names the first item that differs."""
    shape, dtype = reference.shape, reference.dtype
    try:
        # torch.stack itself fails for other shapes. Comparing every shape took half of the time.
        stacked = _stack(items, reference)
        if stacked.shape[1:] == shape and {item.dtype for item in items} <= {dtype}:
            return stacked
    except (RuntimeError, TypeError):
        pass
    for row, item in zip(rows, items, strict=True):
        if not isinstance(item, Tensor) or item.shape != shape or item.dtype != dtype:
            raise _mismatch_error(item, reference, row)
    return _stack(items, reference)  # raises its own error, such as for several devices


def _stack(items: Sequence[Tensor], reference: Tensor) -> Tensor:
    if items:
        return torch.stack(list(items))
    return reference.new_empty((0, *reference.shape))


def _describe_item(item: Any) -> str:
    if isinstance(item, tuple | list) and len(item) <= 4:
        return f"{type(item).__name__}({', '.join(_describe_item(part) for part in item)})"
    if isinstance(item, Tensor | Mapping):
        return describe_input(item)
    return type(item).__name__
