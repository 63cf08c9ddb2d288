"""Starts a rollout after comparing both models on held-out rows.

Shape legend: N = windows, O = outputs.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.data.folds import Fold
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_agreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Transition

_NEWEST_ROWS = 2000
_BATCH = 256


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
    rules: str,
) -> tuple[Transition, PredictionAgreement]:
    """Start the rollout of a version.

    Args:
        ledger: Stores the rollout.
        model: Name of the model.
        version: Version number of the challenger.
        settings: Fixed for the whole rollout.
        frame: Feature frame that the challenger was evaluated on.
        folds: Folds of that frame; the test rows of the last one are held out from both models'
            newest members.
        store: Stores the network weights.
        actor: Person or service that starts it, for the record.
        reason: Why it is started, for the record.
        rules: Digest of the settings under which the verdict must have been given.

    Returns:
        The first transition, and the distance of both models' predictions on the held-out rows.

    Raises:
        GateBlocked: The models take different inputs, or the evidence does not allow the
            rollout.
        RolloutConflict: Another rollout is in progress.
        IntegrityError: One of the models does not load.
    """
    agreement = _agreement(ledger, model, version, frame=frame, folds=folds, store=store)
    transition = ledger.start_rollout(
        model, version, settings, actor=actor, reason=reason, agreement=agreement, rules=rules
    )
    return transition, agreement


def _agreement(
    ledger: RolloutLedger,
    model: str,
    number: int,
    *,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    store: ArtifactStore,
) -> PredictionAgreement:
    from sluice.registry.loading import rebuild_workload  # brings torch
    from sluice.serving.deployed import DeployedModel, load_deployed

    version, production = ledger.version(model, number), ledger.production(model)
    if production is None:
        raise GateBlocked(
            f"{model} has no version in production to compare version {number} with.",
            fix=f"Promote the first one: sluice registry promote {model} {number}",
        )
    ours, theirs = load_deployed(version, store), load_deployed(production, store)
    if not ours.contract.takes_same(theirs.contract):
        raise GateBlocked(
            f"Version {number} must take the inputs that version {production.number} takes, to "
            "answer the same requests, but takes different ones.",
            cause=f"Windows of {ours.contract.seq_len} rows of {', '.join(ours.contract.columns)}; "
            f"in production {theirs.contract.seq_len} of {', '.join(theirs.contract.columns)}.",
            fix="Serve it under another name, or promote it manually and restart the clients: "
            f"sluice registry promote {model} {number}",
        )
    workload, _ = rebuild_workload(version)
    x = workload.examples(frame, folds[-1].test).tensor.numpy()[-_NEWEST_ROWS:].astype(np.float32)

    def predictions(deployed: DeployedModel) -> NDArray[np.float64]:
        starts = range(0, len(x), _BATCH)
        return np.concatenate(
            [deployed.predict(x[at : at + _BATCH], None).mean(axis=0) for at in starts]
        )

    return measure_agreement(predictions(theirs), predictions(ours))
