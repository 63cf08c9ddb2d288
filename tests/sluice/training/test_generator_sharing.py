"""TRACE-6: operations that share a random generator are found."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.seeding import RandomStream
from sluice.training.generator_sharing import find_shared_generators, record_generator_use


@pytest.fixture(autouse=True)
def _own_generators():
    with RandomStream(1).active():
        yield


def test_draws_from_global_generators_are_named():
    draws, shared = record_generator_use(
        {
            "python": random.random,
            "numpy": lambda: np.random.rand(),  # noqa: NPY002
            "torch": lambda: torch.rand(1),
            "quiet": lambda: 1 + 1,
            "stream": draw_from_own_stream,
        },
        {},
    )

    assert [draw.moved for draw in draws] == [
        ("Python random",),
        ("NumPy global",),
        ("torch CPU",),
        (),
        (),
    ]
    assert shared == ()


def draw_from_own_stream() -> None:
    with RandomStream(3).active():
        torch.rand(1)


def test_draw_of_a_cached_normal_number_counts_as_a_draw():
    """Normal numbers are drawn in pairs. The second is cached and does not advance the state."""
    np.random.standard_normal()  # noqa: NPY002
    random.gauss(0, 1)

    (draw,), _ = record_generator_use(
        {"normal": lambda: (np.random.standard_normal(), random.gauss(0, 1))},  # noqa: NPY002
        {},
    )

    assert draw.moved == ("Python random", "NumPy global")


def test_dropout_and_initialization_share_the_global_generator():
    drop = nn.Dropout(0.5)

    _, shared = record_generator_use(
        {"init": lambda: nn.Linear(2, 2), "dropout": lambda: drop(torch.ones(3))}, {}
    )

    (found,) = shared
    assert found.users == ("init", "dropout")
    assert "torch CPU" in found.why


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (
            lambda: torch.Generator().manual_seed(2),
            lambda generator: torch.rand(1, generator=generator),
        ),
        (lambda: np.random.default_rng(2), lambda generator: generator.random()),
        (lambda: random.Random(2), lambda generator: generator.random()),
    ],
    ids=["torch", "numpy", "python"],
)
def test_passed_generator_used_by_two_operations_is_found(make, draw):
    generator, other = make(), make()

    draws, shared = record_generator_use(
        {
            "order": lambda: draw(generator),
            "noise": lambda: draw(generator),
            "split": lambda: draw(other),
        },
        {"order": generator, "split": other},
    )

    assert [d.moved for d in draws] == [
        ("generator of order",),
        ("generator of order",),
        ("generator of split",),
    ]
    assert [found.users for found in shared] == [("order", "noise")]


def test_shared_object_and_equal_streams_are_distinguished():
    one = torch.Generator().manual_seed(1)
    bits = np.random.PCG64(5)

    found = find_shared_generators(
        {
            "order": one,
            "noise": one,
            "split": torch.Generator().manual_seed(1),
            "left": np.random.Generator(bits),
            "right": np.random.Generator(bits),
            "alone": torch.Generator().manual_seed(2),
            "python": random.Random(1),
        }
    )

    assert {(*f.users, f.why) for f in found} == {
        ("order", "noise", "they use the same object"),
        ("order", "split", "both produce the same numbers"),
        ("noise", "split", "both produce the same numbers"),
        ("left", "right", "they use the same object"),
    }
    torch.rand(1, generator=one)
    assert find_shared_generators({"a": one, "b": torch.Generator().manual_seed(1)}) == ()
