"""Scores a registered version on the current rows, to run the suites outside the pipeline."""

from dataclasses import dataclass

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.data.folds import Fold
from sluice.evaluation.imported_baseline import find_baseline
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import Scores, score_baseline
from sluice.evaluation.simple_rules import BaselineSettings, choose_baseline
from sluice.evaluation.suites.run import SuiteScores
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeSource
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceRows:
    """Current rows of a workload's source, with their features and folds."""

    raw: pd.DataFrame
    frame: pd.DataFrame
    folds: tuple[Fold, ...]

    @classmethod
    def load(cls, workload: Workload) -> "SourceRows":
        """Read the source, compute the features and plan the folds."""
        raw = workload.load_rows()
        frame = workload.compute_features(raw)
        return cls(raw=raw, frame=frame, folds=workload.plan_folds(frame))


def score_arms(
    version: Version,
    ledger: Ledger,
    workload: Workload,
    rows: SourceRows,
    store: ArtifactStore,
    *,
    code: CodeSource,
    baseline_settings: BaselineSettings,
) -> SuiteScores:
    """Score a version, its reference and the baseline on the current test rows.

    The reference is the version in production. If the version itself is in production, the
    reference is the version with which it was compared before its promotion. If there is no such
    version, the reference is the baseline.

    Raises:
        ContractError: A version cannot be scored on these rows, or its code has changed and it
            does not reproduce its recorded losses.
        CodeMismatch, UntrustedCode: See ``score_version``.
        IntegrityError: Weights are missing or damaged.
        GateBlocked: The imported predictions of the baseline are missing.
    """
    reference = ledger.production(version.model)
    if reference is not None and reference.candidate == version.candidate:
        reference = ledger.version_of(version.model, version.lineage.reference)
    scoring_inputs = workload, rows.frame, rows.folds
    # Imported predictions are the baseline only while no version is the reference.
    baseline = (
        find_baseline(ledger, version.model, baseline_settings, store, *scoring_inputs)
        if reference is None
        else choose_baseline(*scoring_inputs, baseline_settings)
    )
    baseline_scores = score_baseline(*scoring_inputs, baseline, subject=BASELINE)
    return SuiteScores(
        candidate=score_registered(version, workload, rows, store, code=code),
        reference=baseline_scores
        if reference is None
        else score_registered(reference, workload, rows, store, code=code),
        baseline=baseline_scores,
    )


def score_registered(
    version: Version,
    workload: Workload,
    rows: SourceRows,
    store: ArtifactStore,
    *,
    code: CodeSource,
) -> Scores:
    """Score each seed of one version on the current test rows.

    Raises:
        ContractError, CodeMismatch, UntrustedCode, IntegrityError: See ``score_version``.
    """
    return score_version(
        version,
        workload,
        rows.raw,
        rows.frame,
        rows.folds,
        store,
        code=code,
    ).by_seed
