"""Compares the arms on labelled live rows with the promotion gate.

After each ``quality_rows`` newly labelled rows, the gate decides on all labelled rows of the
rollout so far. All decisions of a rollout share the gate's alpha: decision k spends
alpha * k**-1.6 / zeta(1.6), as for repeated attempts on one evaluation window. These terms sum to
alpha. So each of two errors has a probability of at most alpha for any number of decisions, even if
the decisions are correlated:

- A challenger with at least the required gain (0 by default) is rejected.
- A challenger with at most the required gain is promoted.
"""

from collections.abc import Sequence
from datetime import datetime

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.evaluation.alpha_spending import settings_for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout
from sluice.rollout_control.labelled_losses import find_first_unseen, labelled_losses
from sluice.verdicts.verdict import Verdict
from sluice.workloads.workload import Workload


def evaluate_live_quality(
    ledger: RolloutLedger,
    model: str,
    workload: Workload,
    gate: GateSettings,
    store: ArtifactStore,
    frame: pd.DataFrame,
    now: datetime,
) -> Verdict | None:
    """Decide on the labelled rows of the rollout in progress, and record the verdict.

    Call this function whenever features are updated. Nothing happens without enough new labels.

    Args:
        ledger: Ledger with the rollout and the samples.
        model: Name of the model.
        workload: Computes the losses.
        gate: Settings of the promotion gate.
        store: Store for the tables of compared losses.
        frame: Newest feature frame, whose rows all have labels.
        now: Current time, UTC.

    Returns:
        The recorded verdict; None if no rollout is in progress, or if there are fewer than
        ``quality_rows`` new labels.

    Raises:
        ContractError: Samples do not fit the workload or the frame.
        StorageError: The ledger or the store cannot be written.
    """
    rollout = ledger.rollout(model)
    if rollout is None or rollout.is_over:
        return None
    tables = live_losses(ledger, rollout, workload, frame)
    earlier_verdicts = ledger.observations.quality(rollout.id)
    if tables is None or not _is_due(tables[0], earlier_verdicts, rollout.settings.quality_rows):
        return None
    verdict = decide_on_quality(
        *tables,
        gate,
        earlier_verdicts=earlier_verdicts,
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
    ledger.observations.record_quality(rollout.id, verdict, at=now)
    return verdict


def decide_on_quality(
    challenger: LossTable,
    production: LossTable,
    gate: GateSettings,
    *,
    earlier_verdicts: Sequence[Verdict],
    horizon_rows: int,
    unit: str,
) -> Verdict:
    """Compare both arms on live rows with the part of alpha that this decision spends.

    Args:
        challenger: Losses of each of the challenger's networks on the live rows.
        production: Losses of each of production's networks on the same rows.
        gate: Settings of the promotion gate, with alpha for all decisions of the rollout together.
        earlier_verdicts: All earlier verdicts of the rollout.
        horizon_rows: Number of following rows on which a target depends; 0 for independent rows.
        unit: Unit of the losses, for display.

    Returns:
        A verdict with the challenger as candidate. REJECT means that the challenger is proven to
        be worse, or to have less gain than the gate requires. If there are too few rows or
        networks, the verdict is INCONCLUSIVE and spends no alpha.
    """
    # A verdict that lacked rows or networks has spent no alpha.
    attempt = 1 + sum(not verdict.lacking for verdict in earlier_verdicts)
    verdict = compare(
        challenger,
        production,
        settings_for_attempt(gate, attempt),
        horizon_rows=horizon_rows,
        unit=unit,
    )
    return verdict.model_copy(update={"attempt": attempt, "alpha_of_all": gate.alpha})


def live_losses(
    ledger: RolloutLedger, rollout: Rollout, workload: Workload, frame: pd.DataFrame
) -> tuple[LossTable, LossTable] | None:
    """Return the losses of challenger and production on the rollout's labelled rows.

    Rows that a network of either model was trained on are excluded, because the network's loss on
    these rows would be too low. Returns None if no row has its label yet.
    """
    from sluice.serving.deployed import deployed_members  # imports torch

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
        first_unseen_position=find_first_unseen(members, frame, horizon_rows=workload.horizon_rows),
    )


def _is_due(table: LossTable, earlier_verdicts: Sequence[Verdict], quality_rows: int) -> bool:
    num_decided_rows = earlier_verdicts[-1].num_rows if earlier_verdicts else 0
    return table.num_rows >= num_decided_rows + quality_rows
