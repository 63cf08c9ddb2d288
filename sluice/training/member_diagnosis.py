"""Diagnoses the learning curves of all fitted members of a candidate."""

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
from sluice.models.settings import ModelSettings
from sluice.training.curve_diagnosis import DiagnosisSettings, Symptom, diagnose_curves
from sluice.training.dead_units import count_dead_units
from sluice.training.loop import EpochResult
from sluice.training.members import Member
from sluice.training.setting_changes import first_change
from sluice.training.settings import TrainSettings
from sluice.training.weights import load_member
from sluice.workloads.constant_baseline import constant_baseline_loss
from sluice.workloads.workload import Examples, Workload

_ROWS = 512
"""Number of rows for dead neurons and the trivial loss, from the middle of the train rows."""


class MemberSymptom(Record):
    """One kind of symptom: how many members have it, and its values in the first of them."""

    symptom: Symptom = Field(description="Symptom of the first member that has it.")
    seed: int
    fold_id: int
    members: int = Field(description="Number of members with a symptom of this kind.")
    of: int = Field(description="Number of members that were analysed.")
    change: str = Field("", description="Setting to change first, as 'key=value'; '' for none.")

    @property
    def sentence(self) -> str:
        """Observation, place, cause and first fix, for reports."""
        s = self.symptom
        return (
            f"{s.kind} in {self.members} of {self.of} members, such as seed {self.seed} fold "
            f"{self.fold_id}: {s.what} {s.cause} {s.fix}"
        )

    def advice(self, pipeline: str) -> str:
        """Return the observation and the command to run, for the decision on the candidate."""
        s = self.symptom
        observation = (
            f"{s.kind[0].upper()}{s.kind[1:]} in {self.members} of {self.of} trainings: {s.what}"
        )
        if not self.change:
            return f"{observation} {s.fix}"
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
        workload: As in training.
        frame: The feature frame.
        folds: As in training.
        model: Architecture and size, as in training.
        settings: Thresholds of the symptoms.
        training: As in training.
        store: Holds weights and logs.

    Raises:
        IntegrityError: Weights or a log are missing or damaged.

    Cost:
        About 10 ms per member.
    """
    rows = {fold.fold_id: _some_rows(workload, frame, fold) for fold in folds}
    trivial = {fold_id: _trivial(workload, examples) for fold_id, examples in rows.items()}
    found: dict[str, list[tuple[Member, Symptom]]] = {}
    for member in members:
        network = load_member(member, workload, model, store)
        diagnosis = diagnose_curves(
            _history(member, store),
            settings,
            max_epochs=training.max_epochs,
            expects_signal=workload.expects_signal,
            trivial_loss=trivial[member.fold_id],
            dead_units=_dead(network, rows[member.fold_id]),
        )
        for symptom in diagnosis.symptoms:
            found.setdefault(symptom.kind, []).append((member, symptom))
    cut_off = _cut_off(members, settings, max_epochs=training.max_epochs)
    if cut_off:
        found["stopped too early"] = cut_off
    return tuple(
        MemberSymptom(
            change=first_change(seen[0][1].kind, model, training),
            symptom=seen[0][1],
            seed=seen[0][0].seed,
            fold_id=seen[0][0].fold_id,
            members=len(seen),
            of=len(members),
        )
        for seen in sorted(found.values(), key=len, reverse=True)
    )


def _cut_off(
    members: Sequence[Member], settings: DiagnosisSettings, *, max_epochs: int
) -> list[tuple[Member, Symptom]]:
    """Return the members whose best epoch is max_epochs, if they are common."""
    last = [member for member in members if member.best_epoch == max_epochs]
    if len(last) < settings.common_share * len(members):
        return []
    symptom = Symptom(
        kind="stopped too early",
        what=f"the best epoch is the last one, {max_epochs} of {max_epochs}.",
        cause="max_epochs ended the training before it converged.",
        fix="Double max_epochs first; then raise learning_rate by a factor of 2 to 3.",
    )
    return [(member, symptom) for member in last]


def _some_rows(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Examples:
    train = fold.train
    start = train.start + max(0, (len(train) - _ROWS) // 2)
    part = RowRange(start=start, stop=min(train.stop, start + _ROWS))
    return workload.examples(frame, part)


def _trivial(workload: Workload, examples: Examples) -> float | None:
    try:
        return constant_baseline_loss(workload, examples.targets)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None  # the loss does not accept a constant output


def _dead(network: nn.Module, examples: Examples) -> tuple[int, int]:
    with torch.inference_mode():
        return count_dead_units(network, examples.x)


def _history(member: Member, store: ArtifactStore) -> list[EpochResult]:
    events = read_events(store.path(member.event_log)).events
    names = {field.name for field in fields(EpochResult)}
    return [EpochResult(**_only(names, e)) for e in events if e["event"] == "epoch_complete"]


def _only(names: set[str], event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name in names}
