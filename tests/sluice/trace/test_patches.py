"""Patches next to another library that wraps the same functions."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from sluice.trace.patches import Patches


def wrap(name: str, function: Callable[[], str]) -> Callable[[], str]:
    return lambda: f"{name}({function()})"


@pytest.fixture
def module() -> SimpleNamespace:
    return SimpleNamespace(step=lambda: "step")


@pytest.fixture
def patches(module: SimpleNamespace) -> Patches:
    patches = Patches()
    patches.replace(module, "step", wrap("traced", module.step))
    return patches


def test_a_pause_undoes_a_patch_and_applies_it_again(
    module: SimpleNamespace, patches: Patches
) -> None:
    with patches.paused():
        assert module.step() == "step"
    assert module.step() == "traced(step)"

    patches.restore()

    assert module.step() == "step"


def test_a_pause_keeps_a_wrapper_of_another_library(
    module: SimpleNamespace, patches: Patches
) -> None:
    module.step = wrap("other", module.step)

    with patches.paused():
        assert module.step() == "other(traced(step))"

    assert module.step() == "other(traced(step))"


def test_a_wrapper_that_is_added_during_a_pause_stays(
    module: SimpleNamespace, patches: Patches
) -> None:
    with patches.paused():
        module.step = wrap("other", module.step)

    assert module.step() == "other(step)"
    patches.restore()
    assert module.step() == "other(step)"


def test_patches_of_one_function_are_applied_again_in_order(
    module: SimpleNamespace, patches: Patches
) -> None:
    patches.replace(module, "step", wrap("second", module.step))

    with patches.paused():
        assert module.step() == "step"

    assert module.step() == "second(traced(step))"
