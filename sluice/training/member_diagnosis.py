"""Finds symptoms in the learning curves of all members of a candidate, and counts the members."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd
import torch
from pydantic import Field
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.settings import Record
from sluice.data.folds import Fold, RowRange
from sluice.eventlog.event_log import read_events
from sluice.findings.finding import Finding
from sluice.models.settings import ModelSettings
from sluice.training.curve_diagnosis import DiagnosisSettings, diagnose_curves
from sluice.training.dead_units import count_dead_units
from sluice.training.loop import EpochResult
from sluice.training.members import Member
from sluice.training.setting_changes import suggest_first_change
from sluice.training.settings import TrainSettings
from sluice.training.weights import load_member
from sluice.workloads.constant_baseline import constant_baseline_loss
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_SAMPLE_ROWS = 512
"""Number of rows from the middle of the train rows on which dead units are counted and the loss of
the constant baseline is computed."""


class MemberSymptom(Record):
    """One fault in a candidate: how many members have the fault, and an example."""

    symptom: Finding = Field(description="Symptom of the first member with this fault.")
    seed: int
    fold_id: int
    num_affected: int = Field(description="Number of members with this fault.")
    num_members: int = Field(description="Number of members that were analysed.")
    change: str = Field(
        "", description="Change of a setting to try first, as 'key=value'; '' without a suggestion."
    )

    @property
    def sentence(self) -> str:
        """Observation, example member, cause and first fix, for reports."""
        symptom = self.symptom
        return (
            f"{symptom.fault} in {self.num_affected} of {self.num_members} members, such as seed "
            f"{self.seed} fold {self.fold_id}: {symptom.what} {symptom.cause} {symptom.fix}"
        )

    def advice(self, pipeline: str) -> str:
        """Return the observation and the command to run, for the decision about the candidate.

        Without a suggested change, the fix of the symptom replaces the command.
        """
        fault, what = self.symptom.fault, self.symptom.what
        observation = (
            f"{fault[0].upper()}{fault[1:]} in {self.num_affected} of {self.num_members} "
            f"trainings: {what}"
        )
        if not self.change:
            return f"{observation} {self.symptom.fix}"
        key, _, value = self.change.partition("=")
        return f"{observation} Set {key} to {value} (sluice run {pipeline} --set {self.change})."


def diagnose_members(
    members: Sequence[Member],
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    model: ModelSettings,
    settings: DiagnosisSettings,
    *,
    training: TrainSettings,
    store: ArtifactStore,
) -> tuple[MemberSymptom, ...]:
    """Diagnose every member's curves and neurons; return the symptoms, the most common first.

    Args:
        members: The members of the candidate.
        workload: Workload that the members were trained on.
        frame: The feature frame.
        folds: Folds of the members.
        model: Architecture and size of the members.
        settings: Thresholds of the symptoms.
        training: Training settings of the members.
        store: Contains the weights and logs of the members.

    Raises:
        IntegrityError: Weights or a log are missing or damaged.

    Cost:
        About 10 ms per member.
    """
    rows = {fold.fold_id: _sample_rows(workload, frame, fold) for fold in folds}
    constant_losses = {
        fold_id: _constant_loss(workload, examples) for fold_id, examples in rows.items()
    }
    members_by_fault: dict[str, list[tuple[Member, Finding]]] = {}
    for member in members:
        network = load_member(member, workload, model, store)
        diagnosis = diagnose_curves(
            _history(member, store),
            settings,
            max_epochs=training.max_epochs,
            expects_signal=workload.expects_signal,
            constant_loss=constant_losses[member.fold_id],
            dead_units=_count_dead_units(network, rows[member.fold_id]),
        )
        for symptom in diagnosis.symptoms:
            members_by_fault.setdefault(symptom.fault, []).append((member, symptom))
    members_stopped_early = _find_stopped_early(members, settings, max_epochs=training.max_epochs)
    if members_stopped_early:
        members_by_fault["stopped too early"] = members_stopped_early
    return tuple(
        MemberSymptom(
            change=suggest_first_change(affected[0][1].fault, model, training),
            symptom=affected[0][1],
            seed=affected[0][0].seed,
            fold_id=affected[0][0].fold_id,
            num_affected=len(affected),
            num_members=len(members),
        )
        for affected in sorted(members_by_fault.values(), key=len, reverse=True)
    )


def _find_stopped_early(
    members: Sequence[Member], settings: DiagnosisSettings, *, max_epochs: int
) -> list[tuple[Member, Finding]]:
    """Return the members whose best epoch is ``max_epochs``; [] below ``common_share``."""
    affected_members = [member for member in members if member.best_epoch == max_epochs]
    if len(affected_members) < settings.common_share * len(members):
        return []
    symptom = Finding.of(
        "stopped too early",
        what=f"the best epoch is the last one, epoch {max_epochs} of {max_epochs}.",
        evidence={"max_epochs": max_epochs, "members": len(affected_members)},
    )
    return [(member, symptom) for member in affected_members]


def _sample_rows(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Examples:
    train = fold.train
    start = train.start + max(0, (len(train) - _SAMPLE_ROWS) // 2)
    sampled_rows = RowRange(start=start, stop=min(train.stop, start + _SAMPLE_ROWS))
    return workload.examples(frame, sampled_rows)


def _constant_loss(workload: Workload, examples: Examples) -> float | None:
    try:
        return constant_baseline_loss(workload, examples.targets)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None  # the loss does not accept a constant output


def _count_dead_units(network: nn.Module, examples: Examples) -> tuple[int, int]:
    with torch.inference_mode():
        return count_dead_units(network, examples.x)


def _history(member: Member, store: ArtifactStore) -> list[EpochResult]:
    events = read_events(store.path(member.event_log)).events
    names = {field.name for field in fields(EpochResult)}
    return [
        EpochResult(**_select_fields(names, e)) for e in events if e["event"] == "epoch_complete"
    ]


def _select_fields(names: set[str], event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name in names}
