"""Starts a rollout after comparing both models on held-out rows."""

from collections.abc import Sequence

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.data.folds import Fold
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_agreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition

_MAX_ROWS = 2000
"""Maximum number of the newest held-out rows on which predictions are compared."""
_BATCH_ROWS = 256
"""Number of rows in a batch of predictions."""


def start_rollout(
    ledger: RolloutLedger,
    model: str,
    version: int,
    settings: RolloutSettings,
    *,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
    actor: str,
    reason: str,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
) -> tuple[Transition, PredictionAgreement]:
    """Compare both models on held-out rows, and start the rollout of a version.

    Args:
        ledger: Ledger that stores the rollout.
        model: Name of the model.
        version: Version number of the challenger.
        settings: Settings, which are fixed for the whole rollout.
        frame: Feature frame that the challenger was evaluated on.
        folds: Folds of this frame. The test rows of the last fold are held out from both models'
            newest members.
        store: Store of the network weights.
        actor: Person or service that starts the rollout, for the record.
        reason: Reason of the start, for the record.
        gate_settings_digest: Digest of the gate, guard and suite settings under which the verdict
            must have been issued.
        approval_settings: Approval that the pipeline's settings require.

    Returns:
        The first transition, and the distance between the predictions of both models on the
        held-out rows.

    Raises:
        ApprovalMissing: A required approval is missing or has expired.
        GateBlocked: No version is in production, the models take different inputs, or the evidence
            does not allow the rollout.
        RolloutConflict: Another rollout is in progress.
        CodeMismatch, UntrustedCode, IntegrityError: One of the models does not load.
    """
    agreement = _measure_agreement(ledger, model, version, frame=frame, folds=folds, store=store)
    transition = ledger.start_rollout(
        model,
        version,
        settings,
        actor=actor,
        reason=reason,
        agreement=agreement,
        gate_settings_digest=gate_settings_digest,
        approval_settings=approval_settings,
    )
    return transition, agreement


def _measure_agreement(
    ledger: RolloutLedger,
    model: str,
    version_number: int,
    *,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
) -> PredictionAgreement:
    from sluice.registry.loading import rebuild_workload  # imports torch
    from sluice.serving.deployed import load_deployed, predict_rows

    version, production = ledger.version(model, version_number), ledger.production(model)
    promote_command = f"sluice registry promote {model} {version_number} --reason '...'"
    if production is None:
        raise GateBlocked(
            f"{model} has no production version to compare version {version_number} with.",
            fix=f"Promote a first version: {promote_command}",
        )
    challenger_model, production_model = (
        load_deployed(version, store),
        load_deployed(production, store),
    )
    if not challenger_model.contract.has_same_input(production_model.contract):
        raise GateBlocked(
            f"Version {version_number} cannot answer the requests of production version "
            f"{production.number}, because it needs other inputs.",
            cause=f"Version {version_number} needs {challenger_model.contract.summary}; production "
            f"needs {production_model.contract.summary}.",
            fix="Serve the version under another model name; or promote it manually and change the "
            f"clients: {promote_command}",
        )
    workload, _ = rebuild_workload(version)
    x = workload.examples(frame, folds[-1].test).x
    rows = range(max(0, len(x) - _MAX_ROWS), len(x))
    return measure_agreement(
        predict_rows(production_model, x, rows, batch_rows=_BATCH_ROWS),
        predict_rows(challenger_model, x, rows, batch_rows=_BATCH_ROWS),
    )
