"""A registered version on the rows of today: what the suites are run on outside the pipeline."""

from dataclasses import dataclass

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.data.folds import Fold
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import Scores, score_baseline
from sluice.evaluation.simple_rules import SimpleRuleSettings, choose_baseline
from sluice.evaluation.suites.run import Arms
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeChoice
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """What a workload's source holds now, and the windows it is tested on."""

    raw: pd.DataFrame
    frame: pd.DataFrame
    folds: tuple[Fold, ...]

    @classmethod
    def load(cls, workload: Workload) -> "Rows":
        """Read the source, compute the features, plan the folds."""
        raw = workload.load_rows()
        frame = workload.compute_features(raw)
        return cls(raw=raw, frame=frame, folds=workload.plan_folds(frame))


def score_arms(
    version: Version,
    ledger: Ledger,
    workload: Workload,
    rows: Rows,
    store: ArtifactStore,
    *,
    code: CodeChoice,
    simple_rules: SimpleRuleSettings,
) -> Arms:
    """Score a version, what it would replace, and the baseline, on the present test rows.

    It would replace what is in production; what is in production itself is compared with what it
    was compared with when it was made.

    Raises:
        ContractError: A version cannot be scored on these rows, or its code has changed and it
            does not make its recorded losses any more.
        OtherCode: See ``score_version``.
        IntegrityError: Weights are missing or damaged.
    """
    rule = choose_baseline(workload, rows.frame, rows.folds, simple_rules)
    baseline = score_baseline(workload, rows.frame, rows.folds, rule, subject=BASELINE)
    reference = ledger.production(version.model)
    if reference is not None and reference.candidate == version.candidate:
        reference = ledger.version_of(version.model, version.lineage.reference)
    return Arms(
        candidate=score_registered(version, workload, rows, store, code=code),
        reference=baseline
        if reference is None
        else score_registered(reference, workload, rows, store, code=code),
        baseline=baseline,
    )


def score_registered(
    version: Version, workload: Workload, rows: Rows, store: ArtifactStore, *, code: CodeChoice
) -> Scores:
    """Score each seed of one version on the present test rows; refuses what score_version does."""
    return score_version(
        version,
        workload,
        rows.raw,
        rows.frame,
        rows.folds,
        store,
        code=code,
    ).by_seed
