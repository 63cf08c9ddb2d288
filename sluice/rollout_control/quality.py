"""Does the challenger predict better on live rows? The promotion gate, once labels arrive (ROLL-2).

Rule: each ``quality_rows`` labelled rows that are new, the gate looks at all of the rollout's
labelled rows so far. All looks of a rollout share the gate's alpha: look k spends
alpha * k**-1.6 / zeta(1.6), as attempts on one window do. The parts add up to alpha, so however
many looks there are and whatever they have in common, a challenger that is no worse is rejected,
and one that is no better promoted, in at most alpha of all rollouts each.
"""

from collections.abc import Sequence
from datetime import datetime

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.budget import for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout
from sluice.rollout_control.labelled import first_unseen, labelled_losses
from sluice.verdicts.verdict import Verdict
from sluice.workloads.workload import Workload


def note_quality_of(
    ledger: RolloutLedger,
    pipeline: PipelineSettings,
    store: ArtifactStore,
    frame: pd.DataFrame,
    now: datetime,
) -> Verdict | None:
    """Judge the rollout under way on the labels that arrived, and note the verdict for it.

    Call it each time features are fresh; it does nothing until enough labels are new.

    Args:
        ledger: Holds the rollout and the samples.
        pipeline: Of the model; its workload knows the losses, its gate the thresholds.
        store: Keeps the losses that were judged.
        frame: Newest feature frame; a row that is in it has its label.
        now: The present moment, UTC.

    Returns:
        The verdict, which the ledger has now; None without a rollout under way or without
        ``quality_rows`` labels that are new.

    Raises:
        ContractError: Samples do not fit the workload or the frame.
        StorageError: The ledger or the store cannot be written.
    """
    rollout = ledger.rollout(pipeline.name)
    if rollout is None or rollout.is_over:
        return None
    workload = pipeline.loaded_workload
    tables = live_losses(ledger, rollout, workload, frame)
    earlier = ledger.observations.quality(rollout.id)
    if tables is None or not _is_due(tables[0], earlier, rollout.settings.quality_rows):
        return None
    verdict = judge_quality(
        *tables,
        pipeline.gate,
        earlier=earlier,
        horizon_rows=workload.horizon_rows,
        unit=workload.loss_unit,
    )
    roles = ("candidate live losses", "reference live losses")
    verdict = verdict.model_copy(
        update={
            "tables": {
                role: store.put(table.to_frame().to_parquet(index=False))
                for role, table in zip(roles, tables, strict=True)
            }
        }
    )
    ledger.observations.note_quality(rollout.id, verdict, at=now)
    return verdict


def judge_quality(
    challenger: LossTable,
    production: LossTable,
    gate: GateSettings,
    *,
    earlier: Sequence[Verdict],
    horizon_rows: int,
    unit: str,
) -> Verdict:
    """Compare both arms on live rows with what this look may spend of alpha.

    Args:
        challenger: Losses of each of its networks on the live rows.
        production: Losses on the same rows.
        gate: Thresholds; ``alpha`` is for all looks of the rollout together.
        earlier: Every verdict of the rollout before this one.
        horizon_rows: How many rows ahead a target looks [rows]; 0 for independent rows.
        unit: Unit of the losses, for people.

    Returns:
        A verdict whose candidate is the challenger. REJECT: proven worse, or to gain less than the
        gate asks for. INCONCLUSIVE also when rows or networks are too few; that spends nothing.
    """
    look = 1 + sum(not verdict.lacking for verdict in earlier)
    verdict = compare(
        challenger, production, for_attempt(gate, look), horizon_rows=horizon_rows, unit=unit
    )
    return verdict.model_copy(update={"attempt": look, "alpha_of_all": gate.alpha})


def live_losses(
    ledger: RolloutLedger, rollout: Rollout, workload: Workload, frame: pd.DataFrame
) -> tuple[LossTable, LossTable] | None:
    """Return the losses of challenger and production on the rollout's labelled rows.

    Rows that a network of either has learned from are left out: it would look too good there.
    None while no label has arrived.
    """
    from sluice.serving.deployed import deployed_members  # brings torch

    versions = [
        ledger.version(rollout.model, number)
        for number in (rollout.version, rollout.production_version)
    ]
    members = [m for version in versions for m in deployed_members(version.lineage.members)]
    return labelled_losses(
        rollout,
        ledger.observations.pairs(rollout.id),
        frame,
        workload,
        first_unseen=first_unseen(members, frame, horizon_rows=workload.horizon_rows),
    )


def _is_due(table: LossTable, earlier: Sequence[Verdict], quality_rows: int) -> bool:
    seen = earlier[-1].num_rows if earlier else 0
    return table.num_rows >= seen + quality_rows
