"""Checks of trained networks report unusual event logs and members instead of raising."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.checks import trained_models

EPOCH = {
    "event": "epoch_complete",
    "seed": 0,
    "fold_id": 1,
    "epoch": 2,
    "train_loss": 0.5,
    "val_loss": 0.6,
    "grad_norm_max": 1.0,
}


def check_finite(folder: Path, events: list[dict[str, Any]]) -> Any:
    store = ArtifactStore(folder)
    log = store.put("".join(json.dumps(event) + "\n" for event in events).encode())
    return trained_models._check_finite(
        SimpleNamespace(store=store), SimpleNamespace(event_log=log), ["p", "trained_models"]
    )


@pytest.mark.parametrize(
    ("missing_fields", "expected"),
    [
        (("epoch", "val_loss"), "seed 0 fold 1 epoch ?"),
        (("val_loss",), "seed 0 fold 1 epoch 2"),
        (("seed", "fold_id", "grad_norm_max"), "seed ? fold ? epoch 2"),
    ],
)
@pytest.mark.parametrize("has_complete_epoch", [True, False])
def test_an_epoch_with_missing_fields_fails_the_check(
    tmp_path: Path, missing_fields: tuple[str, ...], expected: str, has_complete_epoch: bool
) -> None:
    incomplete = {name: value for name, value in EPOCH.items() if name not in missing_fields}
    result = check_finite(tmp_path, [*([EPOCH] if has_complete_epoch else []), incomplete])

    assert not result.passed
    assert f"missing: {expected} (1 epoch)." in str(result.description)


def test_an_epoch_without_its_number_is_checked(tmp_path: Path) -> None:
    unnumbered = {name: value for name, value in EPOCH.items() if name != "epoch"}

    assert check_finite(tmp_path, [unnumbered]).passed


@pytest.mark.parametrize("events", [[], [{"phase": "start"}]])
def test_a_log_without_epochs_fails_the_check(tmp_path: Path, events: list[Any]) -> None:
    result = check_finite(tmp_path, events)

    assert not result.passed
    assert "no finished epoch" in str(result.description)


def test_two_networks_for_one_seed_and_fold_are_reported() -> None:
    members = [SimpleNamespace(seed=0, fold_id=0), SimpleNamespace(seed=0, fold_id=0)]
    features = SimpleNamespace(folds=[SimpleNamespace(fold_id=0)])

    result = trained_models._check_all_trained(
        (0,), SimpleNamespace(members=members), features, ["p", "trained_models"]
    )

    assert not result.passed
    assert "repeated: [(0, 0)]" in str(result.description)
