"""Seeds derived from one base seed, and independent random streams (REPRO-1, TRACE-6)."""

import hashlib
import os
import random

import numpy as np
import pytest
import torch

from sluice.base.seeding import (
    RandomStream,
    derive_seed,
    deterministic,
    restore_rng,
    rng_state,
    seed_everything,
)


def draw_numbers() -> tuple[float, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),  # noqa: NPY002
        float(np.random.standard_normal()),  # noqa: NPY002
        float(torch.rand(1)),
        float(torch.randn(1)),
    )


def test_derived_seed_is_the_sha256_of_base_and_stage():
    expected = int(hashlib.sha256(b"17_order").hexdigest()[:16], 16) // 2

    assert derive_seed(17, "order") == expected


def test_derived_seeds_differ_by_base_and_stage():
    seeds = {
        derive_seed(base, f"{stage}_{e}") for base in range(20) for stage in "ab" for e in "12"
    }

    assert len(seeds) == 80
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_everything_seeds_python_numpy_and_torch(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")

    def seed_and_draw(seed: int) -> tuple[float, ...]:
        seed_everything(seed)
        return draw_numbers()

    assert seed_and_draw(1) == seed_and_draw(1)
    assert all(a != b for a, b in zip(seed_and_draw(1), seed_and_draw(2), strict=True))
    assert os.environ["PYTHONHASHSEED"] == "2"
    seed_everything(2**63 - 1)


def test_restored_generators_repeat_their_numbers():
    """Python and NumPy generate normal numbers in pairs; the cached second one is restored too."""
    random.gauss(0, 1)
    np.random.standard_normal()  # noqa: NPY002
    state = rng_state()
    expected = [draw_numbers() for _ in range(3)]
    later = [draw_numbers() for _ in range(5)]
    restore_rng({name: tensor.clone() for name, tensor in state.items()})

    assert [draw_numbers() for _ in range(3)] == expected
    assert not set(later) & set(expected)


def test_random_stream_and_global_generators_are_independent():
    def draw_from_stream(is_disturbed: bool) -> list[tuple[float, ...]]:
        stream = RandomStream(4)
        numbers = []
        for _ in range(3):
            with stream.active():
                numbers.append(draw_numbers())
            if is_disturbed:
                draw_numbers()
        return numbers

    before = rng_state()
    undisturbed = draw_from_stream(is_disturbed=False)
    after = rng_state()

    assert draw_from_stream(is_disturbed=True) == undisturbed
    assert all(torch.equal(before[n], after[n]) for n in before if not n.endswith("gauss"))
    assert len(set(undisturbed)) == 3


def test_deterministic_mode_is_reset_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def fail() -> None:
        with deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.get_num_threads() == 1
            raise KeyError

    try:
        with pytest.raises(KeyError):
            fail()
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.set_num_threads(before)


def test_deterministic_mode_computes_in_float32():
    """The default of cuDNN is TF32. A precision that was set explicitly is kept."""
    cudnn = torch.backends.cudnn
    assert cudnn.allow_tf32
    with deterministic():
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("none", "none")
        with deterministic():
            assert not cudnn.allow_tf32
        assert not cudnn.allow_tf32
    assert cudnn.allow_tf32

    cudnn.rnn.fp32_precision = "ieee"
    try:
        with deterministic():
            assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "ieee")
    finally:
        cudnn.rnn.fp32_precision = "tf32"
    for owner in (torch.backends, cudnn):
        owner.fp32_precision = "tf32"
        try:
            with deterministic():
                assert cudnn.allow_tf32
                assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "tf32")
        finally:
            owner.fp32_precision = "none"
    assert cudnn.allow_tf32
