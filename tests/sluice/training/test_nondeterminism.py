"""REPRO-2: the operations known to be non-deterministic are reported when called."""

import inspect
import warnings

import pytest
import torch
from torch import nn

from sluice.base.seeding import deterministic
from sluice.training.nondeterminism import find_nondeterministic_operations

INDEX = torch.tensor([0, 0, 1])


def overwrite() -> None:
    torch.zeros(4).put_(INDEX, torch.ones(3))


def line_of(function, *, after: int) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1] + after} in {function.__qualname__}"


def flags() -> tuple[bool, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_warn_always_enabled(),
    )


def test_nondeterministic_operation_is_reported_with_its_line():
    (found,) = find_nondeterministic_operations(overwrite)

    assert found.operation == "put_"
    assert found.place == f"at {line_of(overwrite, after=1)}"
    assert (found.num_calls, found.ended_the_run) == (1, False)


def test_calls_are_counted_per_line():
    def step() -> None:
        for _ in range(3):
            overwrite()
        nn.functional.max_unpool2d(torch.rand(1, 1, 2, 2), torch.zeros(1, 1, 2, 2).long(), 2)

    several = find_nondeterministic_operations(step)

    assert [(found.operation, found.num_calls) for found in several] == [
        ("put_", 3),
        ("max_unpooling2d_forward_out", 1),
    ]
    # The user's line that calls the library is reported, not the line in the library.
    assert several[1].place == f"at {line_of(step, after=3)}"


def test_deterministic_training_step_has_no_finding():
    network = nn.GRU(3, 4)

    def step() -> None:
        network(torch.randn(5, 2, 3))[0].sum().backward()
        torch.zeros(4).index_put_((INDEX,), torch.ones(3), accumulate=True)

    assert find_nondeterministic_operations(step) == ()


def test_run_ended_by_the_error_of_deterministic_mode_is_reported():
    def strict() -> None:
        with deterministic():
            overwrite()

    (found,) = find_nondeterministic_operations(strict)

    assert (found.operation, found.ended_the_run) == ("put_", True)
    assert found.place == f"at {line_of(overwrite, after=1)}"


@pytest.mark.parametrize(
    ("message", "operation"),
    [
        (
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms"
            "(True)` or `at::Context::setDeterministicAlgorithms(true)`, but this operation is not "
            "deterministic because it uses CuBLAS and you have CUDA >= 10.2. To enable "
            "deterministic behavior in this case, you must set CUBLAS_WORKSPACE_CONFIG=:4096:8",
            "cuBLAS matrix product without CUBLAS_WORKSPACE_CONFIG",
        ),
        (
            "Memory Efficient attention defaults to a non-deterministic algorithm. To explicitly "
            "enable determinism call torch.use_deterministic_algorithms(True, warn_only=False).",
            "Memory Efficient attention",
        ),
        (
            "cumsum_cuda_kernel does not have a deterministic implementation, but you set 'torch."
            "use_deterministic_algorithms(True, warn_only=True)'.",
            "cumsum_cuda_kernel",
        ),
    ],
)
def test_messages_of_torch_for_accelerators_are_parsed(message, operation):
    (found,) = find_nondeterministic_operations(lambda: warnings.warn(message, stacklevel=1))

    assert found.operation == operation
    assert __file__ in found.place


def test_other_warnings_and_errors_are_passed_on():
    with pytest.warns(FutureWarning, match="something else"):
        find_nondeterministic_operations(lambda: warnings.warn("something else", FutureWarning, 1))
    with pytest.raises(RuntimeError, match="the user's bug"):
        find_nondeterministic_operations(
            lambda: (_ for _ in ()).throw(RuntimeError("the user's bug"))
        )


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_flags_and_warning_filters_are_restored(before):
    enabled, warn_only = before
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    try:
        expected, filters, show = flags(), list(warnings.filters), warnings.showwarning
        find_nondeterministic_operations(overwrite)
        with pytest.raises(KeyError):
            find_nondeterministic_operations(lambda: {}["missing"])
        assert (flags(), list(warnings.filters)) == (expected, filters)
        assert warnings.showwarning is show
    finally:
        torch.use_deterministic_algorithms(False)
