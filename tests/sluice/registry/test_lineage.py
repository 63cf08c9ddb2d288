"""Lineage of a version: missing fields, candidate digest, serialization (REG-1)."""

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.base.artifacts import ArtifactStore
from sluice.base.environment import GitState
from sluice.registry.lineage import Lineage
from sluice.training.members import TrainedModels
from tests.sluice.registry.ledger_samples import NOW, sample_lineage


def test_complete_lineage_has_no_missing_fields(store: ArtifactStore) -> None:
    assert sample_lineage(store).missing_fields() == ()


def test_unknown_commit_is_accepted(store: ArtifactStore) -> None:
    outside = GitState(commit="unknown", dirty=None, diff=None)

    assert sample_lineage(store).model_copy(update={"git": outside}).missing_fields() == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("candidate", "abc"),
        ("data", ""),
        ("config", "G" * 64),
        ("code", "a" * 63),
        ("resolved_config", {}),
        ("seeds", ()),
        ("seeds", (0, 1, 2)),
        ("metrics", {}),
        ("reference", "champion"),
        ("training_seconds", 0.0),
        ("training_seconds", float("nan")),
        ("training_seconds", float("inf")),
    ],
)
def test_missing_field_is_named(store: ArtifactStore, field: str, value: Any) -> None:
    changed = sample_lineage(store).model_copy(update={field: value})

    assert changed.missing_fields() == (field,)


def test_missing_members_and_environment_are_named(store: ArtifactStore) -> None:
    lineage = sample_lineage(store)
    incomplete = lineage.environment.model_copy(
        update={"python": "", "device": "", "libraries": {}}
    )
    changed = lineage.model_copy(update={"members": (), "environment": incomplete})

    assert changed.missing_fields() == (
        "seeds",
        "members",
        "environment.python",
        "environment.device",
        "environment.libraries",
    )


def test_lineage_round_trips_through_json(store: ArtifactStore) -> None:
    lineage = sample_lineage(store).model_copy(update={"metrics": {"sharpe": float("-inf")}})

    assert Lineage.model_validate_json(lineage.model_dump_json()) == lineage


def test_time_without_zone_is_rejected(store: ArtifactStore) -> None:
    values = sample_lineage(store).model_dump() | {"created_at": NOW.replace(tzinfo=None)}

    with pytest.raises(ValidationError, match="timezone"):
        Lineage.model_validate(values)


def test_candidate_digest_equals_that_of_the_training(store: ArtifactStore) -> None:
    """The event log, times and number of reused members do not affect the digest."""
    lineage = sample_lineage(store)
    trained = TrainedModels(
        data=lineage.data,
        config=lineage.config,
        code=lineage.code,
        seeds=lineage.seeds,
        members=lineage.members,
        event_log="f" * 64,
        seconds=12.0,
        reused=1,
    )

    assert lineage.compute_candidate() == trained.candidate


def test_every_artifact_has_its_own_role(store: ArtifactStore) -> None:
    lineage = sample_lineage(store).model_copy(update={"artifacts": {"plot": "a" * 64}})

    assert len(lineage.weights()) == 2
    assert list(lineage.other_artifacts()) == [
        "event log of seed 0 fold 0",
        "event log of seed 1 fold 0",
        "plot",
    ]
