"""POC-10: two states are compared bit by bit, and the first difference is named."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from sluice.failfast.checkpoints.training_state import (
    first_difference,
    flatten,
    hidden_state,
    same_bits,
    state_of,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_every_flipped_bit_is_detected(dtype):
    tensor = torch.arange(1, 7).to(dtype).reshape(2, 3)
    raw = tensor.clone().reshape(-1).view(torch.uint8)
    for byte in range(len(raw)):
        changed = raw.clone()
        changed[byte] ^= 1
        other = changed.view(dtype).reshape(2, 3)

        assert not same_bits(tensor, other)
        difference = first_difference({"w": tensor}, {"w": other})
        index = byte // tensor.element_size()
        assert f"at [{index // 3}, {index % 3}]" in difference.change
    assert same_bits(tensor, tensor.clone())


def test_same_bits_agrees_with_the_bytes_of_numpy():
    rng = np.random.default_rng(3)
    values = [0.0, -0.0, math.nan, math.inf, 1.0, np.nextafter(1.0, 2.0)]
    for _ in range(300):
        one, other = rng.choice(values, 2), rng.choice(values, 2)

        assert same_bits(torch.from_numpy(one), torch.from_numpy(other)) == (
            one.tobytes() == other.tobytes()
        )
        assert same_bits(one, other) == (one.tobytes() == other.tobytes())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2).double()),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(()), torch.ones(())),
        (torch.zeros(1), 0.0),
        (np.zeros(2), np.zeros(3)),
        (1, 2),
        ("a", "b"),
        (None, 1.0),
    ],
)
def test_different_values_types_and_shapes_differ(one, other):
    assert not same_bits(one, other)
    assert not same_bits(other, one)


@pytest.mark.parametrize("value", [torch.zeros(0), torch.tensor(math.nan), math.nan, None, "a", 3])
def test_a_value_has_the_same_bits_as_itself(value):
    assert same_bits(value, value)


def test_flatten_copies_tensors_and_arrays():
    tensor, array = torch.zeros(2), np.zeros(2)
    flat = flatten({"a": [tensor, {"b": array}], "none": None, "f": print})

    tensor += 1
    array += 1

    assert list(flat) == ["a/0", "a/1/b"]
    assert flat["a/0"].sum() == flat["a/1/b"].sum() == 0


def test_the_first_difference_is_named_and_the_others_counted():
    saved = {"a": 1, "b": torch.tensor([1.0, 2.0]), "c": 3}
    loaded = {"a": 1, "b": torch.tensor([1.0, 2.5]), "d": 3}

    difference = first_difference(saved, loaded)

    assert str(difference) == "b: at [1] was 2.0, is 2.5 (2 more differ)"
    assert first_difference(saved, dict(saved)) is None
    assert (
        "was (2,) float32, is (2, 1) float32"
        in first_difference({"b": saved["b"]}, {"b": saved["b"][:, None]}).change
    )


def test_optimizer_state_has_the_names_of_its_parameters():
    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    state = state_of(optimizer, model)

    assert {"state/0.weight/exp_avg", "state/0.bias/step"} <= set(state)
    assert state["param_groups/0/params/0"] == "0.weight"


class ModuleWithHiddenState(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("stored", torch.zeros(1))
        self.register_buffer("unstored", torch.zeros(1), persistent=False)
        self.register_buffer("empty", None, persistent=False)
        self.plain = torch.zeros(1)
        self.count = 3
        self.act = torch.relu
        self.parts = {"rng": [random.Random(0), np.random.RandomState(0)]}
        self.itself = self


def test_hidden_state_contains_what_a_state_dict_lacks():
    order = np.random.default_rng(0)
    names = hidden_state(nn.Sequential(ModuleWithHiddenState()), lambda: order.random())

    top_names = {name.partition(" (")[0].partition("/state")[0] for name in names}
    assert {"0.unstored", "0.plain", "0.count", "0.parts/rng/0", "0.parts/rng/1"} <= top_names
    assert any(name.startswith("order of <lambda>()") for name in names)
    assert not any("stored" in name and "unstored" not in name for name in names)
    assert not any("weight" in name or "training" in name for name in names)


def test_equal_modules_have_equal_hidden_state():
    one, other = nn.TransformerEncoderLayer(8, 2), nn.TransformerEncoderLayer(8, 2)

    assert first_difference(hidden_state(one, print), hidden_state(other, print)) is None
