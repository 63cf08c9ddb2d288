"""The protocol of row sources, and checks of the inputs that they return."""

import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import (
    DictRows,
    RowSource,
    as_row_source,
    describe_input,
    gather,
    gather_targets,
    gather_tensor,
    input_length,
    input_parts,
    move_input,
    read_all_as_tensor,
    read_all_rows,
    split_input,
    spread_rows,
)

ROWS = torch.tensor([2, 0, 2])


class Returns:
    """Source of three rows that returns a given value for any rows."""

    def __init__(self, value):
        self.value = value

    def __len__(self):
        return 3

    def __getitem__(self, rows, /):
        return self.value


def test_tensors_and_dicts_of_tensors_are_row_sources():
    x = torch.arange(12).view(4, 3)

    assert isinstance(DictRows({"a": x}), RowSource)
    assert torch.equal(gather(x, ROWS), x[ROWS])
    batch = gather(DictRows({"a": x, "b": x[:, 0]}), ROWS)
    assert torch.equal(batch["a"], x[ROWS])
    assert torch.equal(batch["b"], x[ROWS, 0])


@pytest.mark.parametrize("tensors", [{}, {"a": torch.zeros(3), "b": torch.zeros(2)}])
def test_dict_of_tensors_with_different_lengths_is_rejected(tensors):
    with pytest.raises(ContractError, match=r"tensors of one length, got (no tensor|.*'b': 2)"):
        DictRows(tensors)


@pytest.mark.parametrize(
    ("value", "description"),
    [
        (torch.zeros(2, 5), r"float32 \(2, 5\)"),
        (torch.tensor(1), r"int64 \(\)"),
        ({}, r"\{\}"),
        ({"a": torch.zeros(3), "b": torch.zeros(4)}, r"'b': float32 \(4,\)"),
        ({1: torch.zeros(3)}, r"1: float32"),
        ([torch.zeros(3)], "list"),
        (None, "NoneType"),
    ],
)
def test_input_without_one_entry_per_row_is_rejected(value, description):
    with pytest.raises(
        ContractError, match=rf"Returns must return .* for 3 rows; got .*{description}"
    ):
        gather(Returns(value), ROWS)


def test_targets_that_are_not_one_tensor_are_rejected():
    with pytest.raises(ContractError, match=r"The targets must be one tensor, got \{'a': int64"):
        gather_targets(DictRows({"a": torch.arange(4)}), ROWS)
    with pytest.raises(ContractError, match="The inputs must be one tensor"):
        read_all_as_tensor(DictRows({"a": torch.arange(4)}), what="inputs")
    assert gather_tensor(torch.arange(4), ROWS, what="labels").tolist() == [2, 0, 2]


def test_read_all_rows_returns_all_rows_in_order():
    x = torch.arange(12.0).view(4, 3)
    tensors = DictRows({"a": x})

    assert read_all_rows(x) is x
    assert read_all_rows(tensors) == tensors.tensors

    class Lazy:
        def __len__(self):
            return 4

        def __getitem__(self, rows, /):
            return x[rows]

    assert torch.equal(read_all_as_tensor(Lazy(), what="inputs"), x)


def test_spread_rows_are_evenly_spaced_with_both_ends():
    assert spread_rows(3, 5).tolist() == [0, 1, 2]
    assert spread_rows(101, 5).tolist() == [0, 25, 50, 75, 100]
    assert len(spread_rows(10_000, 999).unique()) == 999


def test_split_input_returns_views():
    inputs = {"b": torch.arange(5), "a": torch.arange(10).view(5, 2)}

    assert [part.shape for part in input_parts(inputs)] == [(5, 2), (5,)]
    assert input_length(inputs) == 5
    parts = list(split_input(inputs, 2))
    assert [part["b"].tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert parts[1]["a"].data_ptr() == inputs["a"][2:].data_ptr()
    assert torch.equal(as_row_source(inputs)[torch.tensor([4])]["b"], torch.tensor([4]))
    moved = move_input(inputs, torch.device("cpu"))
    assert torch.equal(moved["a"], inputs["a"])


def test_input_is_described_by_dtype_and_shape():
    inputs = {"ids": torch.zeros(2, 3, dtype=torch.int64), "x": [1]}

    assert describe_input(inputs) == "{'ids': int64 (2, 3), 'x': list}"
