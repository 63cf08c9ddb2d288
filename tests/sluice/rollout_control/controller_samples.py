"""Helpers for tests of the rollout controller: registered versions, server reports, samples."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.evaluation.settings import GateSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.observations import ArmCounts, TrafficCounts
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.samples import RequestFault, Sample, ServerReport, ServerState
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from tests.sluice.registry.ledger_samples import (
    MODEL,
    poc_receipt,
    promotion_receipt,
    sample_lineage,
)

NUM_NETWORKS = 6
TRAINED_THROUGH = 399
"""Label of the last training row of both versions; its target includes the next row."""

FIRST_UNSEEN_ROW = TRAINED_THROUGH + 2
HEALTHY = ArmCounts(requests=200, errors=2)
FAULTY = ArmCounts(requests=200, errors=90)
QUICK = RolloutSettings(
    min_step_s=0, min_requests=1, shares=(0.05, 1.0), quality_rows=60, lease_s=60
)
PIPELINE = PipelineSettings(
    name=MODEL, workload="tests.support.echo:Echo", gate=GateSettings(min_rows=60)
)
WORKLOAD = resolve(PIPELINE).workload


def register_two_versions(ledger: RolloutLedger, store: ArtifactStore) -> None:
    """Promote version 1 and register version 2 with verdict PROMOTE against it."""
    reference = None
    for salt in (1, 2):
        lineage = sample_lineage(store, salt=salt)
        members = tuple(
            member.model_copy(update={"trained_through": str(TRAINED_THROUGH)})
            for member in lineage.members
        )
        lineage = lineage.model_copy(update={"members": members})
        lineage = lineage.model_copy(update={"candidate": lineage.compute_candidate()})
        decision = promotion_receipt(
            lineage.candidate, **({} if reference is None else {"reference": reference})
        )
        number = ledger.register(MODEL, lineage, [poc_receipt(), decision]).version.number
        if reference is None:
            ledger.promote(MODEL, 1, expected=None, actor="ada", reason="first", store=store)
            reference = ledger.version(MODEL, number).candidate


def begin_rollout(
    ledger: RolloutLedger,
    settings: RolloutSettings = QUICK,
    agreement: PredictionAgreement | None = None,
) -> Rollout:
    """Start a rollout of version 2."""
    return ledger.start_rollout(
        MODEL, 2, settings, actor="ada", reason="The gate said PROMOTE.", agreement=agreement
    ).rollout


def read_rollout(ledger: RolloutLedger) -> Rollout:
    """Return the latest rollout."""
    rollout = ledger.rollout(MODEL)
    assert rollout is not None
    return rollout


def report(
    ledger: RolloutLedger,
    *,
    at: datetime,
    challenger: ArmCounts = HEALTHY,
    samples: Iterable[Sample] = (),
    problem: str = "",
    server: str = "s1",
) -> None:
    """Write the report of a server for the current step of the rollout."""
    now = read_rollout(ledger)
    ledger.observations.write(
        ServerReport(
            state=ServerState(
                server=server,
                model=now.model,
                at=at,
                started_at=now.started_at,
                epoch=now.epoch,
                production=now.production_version,
                challenger=None if problem else now.version,
                challenger_problem=problem,
            ),
            counts=TrafficCounts(
                rollout=now.id,
                epoch=now.epoch,
                since=now.step_since,
                until=max(at, now.step_since),
                production=HEALTHY,
                challenger=challenger,
            ),
            samples=tuple(samples),
        )
    )


def after_last_check(ledger: RolloutLedger, seconds: float = 1) -> datetime:
    """Return the time ``seconds`` after the last check of the rollout."""
    return read_rollout(ledger).checked_at + timedelta(seconds=seconds)


def echo_frame(num_rows: int = 899) -> pd.DataFrame:
    """Return the feature frame of Echo when ``num_rows`` rows have labels."""
    return WORKLOAD.compute_features(WORKLOAD.load_rows()).iloc[:num_rows]


def make_predictions(
    target_N: NDArray[np.float64], *, error: float, seed: int, networks: int = NUM_NETWORKS
) -> NDArray[np.float64]:
    """Return predictions (N, M) of M networks: the target plus noise of scale ``error``."""
    noise = np.random.default_rng(seed).normal(scale=error, size=(target_N.size, networks))
    return np.asarray(target_N[:, None] + noise)


def make_paired_samples(
    rollout: Rollout,
    rows: Sequence[int],
    *,
    challenger_error: float = 1.0,
    production_error: float = 1.0,
    networks: int = NUM_NETWORKS,
) -> list[Sample]:
    """Return one sample with the predictions of both arms per row of the frame."""
    target_N = echo_frame()["echo"].to_numpy()[list(rows)]
    challenger_NM = make_predictions(target_N, error=challenger_error, seed=1, networks=networks)
    production_NM = make_predictions(target_N, error=production_error, seed=2, networks=networks)
    return [
        make_sample(
            rollout,
            key=str(row),
            challenger=tuple((float(v),) for v in challenger_NM[n]),
            production=tuple((float(v),) for v in production_NM[n]),
        )
        for n, row in enumerate(rows)
    ]


def make_sample(
    rollout: Rollout,
    *,
    key: str | None,
    fault: RequestFault | None = None,
    challenger: tuple[tuple[float, ...], ...] | None = None,
    production: tuple[tuple[float, ...], ...] | None = None,
) -> Sample:
    return Sample(
        at=rollout.started_at,
        rollout=rollout.id,
        epoch=rollout.epoch,
        key=key,
        arm="challenger",
        fault=fault,
        seconds=0.01,
        features=(0.0,),
        production=production,
        challenger=challenger,
    )
