"""Row sources of PyTorch and Hugging Face datasets, and errors for unsuitable items."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from sluice.base.errors import ContractError
from sluice.data.rows import DatasetRows

X = torch.arange(60.0).view(20, 3)
Y = torch.arange(20)


class Items:
    """Dataset whose items are computed by a function of the row."""

    def __init__(self, item, length=20):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.item(row)


class Columns:
    """Dataset in the style of Hugging Face: items are dicts, and batches are read at once."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 20

    def __getitem__(self, row):
        return {"x": X[row].tolist(), "text": "words", "label": int(Y[row])}

    def __getitems__(self, rows):
        self.reads += 1
        return [self[row] for row in rows]


def test_tensor_dataset_is_split_into_inputs_and_targets(assert_source):
    x, y = DatasetRows.pair(TensorDataset(X, Y), target=1)

    assert_source(x, lambda rows: X[rows])
    assert_source(y, lambda rows: Y[rows])


def test_fields_of_dict_items_are_selected(assert_source):
    class Tensors(Columns):
        def __getitem__(self, row):
            return {"x": X[row], "label": int(Y[row])}

    both_fields = DatasetRows(Columns(), field=("x", "label"))
    assert_source(both_fields, lambda rows: {"x": X[rows], "label": Y[rows]})
    assert_source(DatasetRows(Columns(), field="x"), lambda rows: X[rows])
    x, y = DatasetRows.pair(Tensors(), target="label")
    assert list(x[torch.tensor([1])]) == ["x"]
    assert y[torch.tensor([3, 1])].tolist() == [3, 1]


def test_batch_is_read_once_for_inputs_and_targets():
    dataset = Columns()
    x, y = DatasetRows(dataset, field="x"), DatasetRows(dataset, field="label")
    y._items = x._items
    dataset.reads = 0

    for rows in (torch.tensor([1, 2]), torch.tensor([4, 2])):
        assert torch.equal(x[rows], X[rows])
        assert torch.equal(y[rows], Y[rows])

    assert dataset.reads == 2


@pytest.mark.parametrize(
    ("item", "dtype"),
    [
        (lambda row: row, torch.int64),
        (lambda row: row / 2, torch.float32),
        (lambda row: row > 3, torch.bool),
        (lambda row: np.float64(row), torch.float64),
        (lambda row: np.arange(3, dtype=np.uint8) + row, torch.uint8),
        (lambda row: [row, row + 1], torch.int64),
    ],
)
def test_numbers_arrays_and_lists_become_tensors(item, dtype):
    batch = DatasetRows(Items(item))[torch.tensor([5, 2])]

    assert batch.dtype == dtype
    assert torch.equal(batch[0], torch.as_tensor(item(5)).to(dtype))


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        (torch.zeros(4), r"like item 0, float32 \(3,\), but item 7 is float32 \(4,\)"),
        (torch.zeros(3, dtype=torch.float64), r"item 7 is float64 \(3,\)"),
        ({"x": torch.zeros(3)}, r"item 7 is \{'x': float32 \(3,\)\}"),
        ("text", "Item 7 must be a tensor, an array or numbers, got str"),
        (None, "Item 7 must be .* got NoneType"),
        ([[1], [1, 2]], "Item 7 must be"),
    ],
)
def test_item_with_another_shape_or_type_is_reported(invalid, message):
    source = DatasetRows(Items(lambda row: invalid if row == 7 else torch.zeros(3)))
    source[torch.tensor([6, 8])]

    with pytest.raises(ContractError, match=message):
        source[torch.tensor([6, 7])]


def test_item_with_other_keys_is_reported():
    source = DatasetRows(Items(lambda row: {"a": row} | ({"b": row} if row == 7 else {})))

    with pytest.raises(ContractError, match=r"item 7 is \{'a': int64 \(\), 'b': int64 \(\)\}"):
        source[torch.tensor([7])]


def test_missing_or_unknown_field_is_rejected():
    with pytest.raises(ContractError, match=r"Item 0 must be .* got tuple\(float.*pair\(dataset"):
        DatasetRows(TensorDataset(X, Y))
    with pytest.raises(ContractError, match=r"Item 0 has no part 'lable'.*Did you mean 'label'"):
        DatasetRows(Columns(), field="lable")
    with pytest.raises(ContractError, match=r"Item 0 has no part 2; it is tuple"):
        DatasetRows(TensorDataset(X, Y), field=2)
    with pytest.raises(ContractError, match="Items must be pairs, or dicts with the key"):
        DatasetRows.pair(Columns(), target="y")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class StreamWithLength(Stream):
    def __len__(self):
        return 3


class NoLength(Dataset):
    def __getitem__(self, row):
        return row


@pytest.mark.parametrize(
    "stream", [Stream(), StreamWithLength(), NoLength(), iter([1]), (n for n in [])]
)
def test_stream_is_rejected_with_the_pack_command(stream):
    with pytest.raises(ContractError, match=r"is a stream.*sluice pack SOURCE DIR"):
        DatasetRows(stream)


def test_dict_of_splits_is_rejected():
    with pytest.raises(ContractError, match=r"cannot be indexed by a row number.*\['train'\]"):
        DatasetRows({"train": TensorDataset(X), "test": TensorDataset(X)})


def test_empty_dataset_and_changing_length_are_rejected():
    dataset = Items(lambda row: row)
    source = DatasetRows(dataset)
    dataset.length = 19

    with pytest.raises(
        ContractError, match="must not change, but Items had 20 items and now has 19"
    ):
        source[torch.tensor([3])]
    with pytest.raises(ContractError, match="at least one item, but Items is empty"):
        DatasetRows(Items(lambda row: row, length=0))


def test_random_augmentation_in_the_dataset_is_rejected():
    with pytest.raises(ContractError, match=r"item 0 differs.*random augmentation"):
        DatasetRows(Items(lambda row: X[row] + torch.rand(3)))


def test_cached_batch_is_not_pickled():
    x, _ = DatasetRows.pair(TensorDataset(X, Y), target=1)
    initial_size = len(pickle.dumps(x))
    x[torch.arange(20)]

    assert len(pickle.dumps(x)) == initial_size
