"""REPRO-1, TRACE-6: one base seed, an independent stream per stage."""

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


def draw() -> tuple[float, ...]:
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


def test_stages_and_bases_do_not_share_a_seed():
    seeds = {
        derive_seed(base, f"{stage}_{e}") for base in range(20) for stage in "ab" for e in "12"
    }

    assert len(seeds) == 80
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_one_call_seeds_every_generator(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")

    def first(seed: int) -> tuple[float, ...]:
        seed_everything(seed)
        return draw()

    assert first(1) == first(1)
    assert all(a != b for a, b in zip(first(1), first(2), strict=True))
    assert os.environ["PYTHONHASHSEED"] == "2"
    seed_everything(2**63 - 1)


def test_state_comes_back_exactly():
    """After an odd number of normal draws, Python and NumPy cache a second one."""
    random.gauss(0, 1)
    np.random.standard_normal()  # noqa: NPY002
    state = rng_state()
    expected = [draw() for _ in range(3)]
    elsewhere = [draw() for _ in range(5)]
    restore_rng({name: tensor.clone() for name, tensor in state.items()})

    assert [draw() for _ in range(3)] == expected
    assert not set(elsewhere) & set(expected)


def test_a_random_stream_and_its_caller_are_independent():
    def draws(disturb: bool) -> list[tuple[float, ...]]:
        stream = RandomStream(4)
        drawn = []
        for _ in range(3):
            with stream.active():
                drawn.append(draw())
            if disturb:
                draw()
        return drawn

    before = rng_state()
    alone = draws(disturb=False)
    after = rng_state()

    assert draws(disturb=True) == alone
    assert all(torch.equal(before[n], after[n]) for n in before if not n.endswith("gauss"))
    assert len(set(alone)) == 3


def test_deterministic_mode_ends_with_the_block():
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
    """By default cuDNN computes in TF32. A precision that the program has set is kept."""
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
