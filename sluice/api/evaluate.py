"""``sluice.evaluate``: losses of a trained model and of its reference on the test rows."""

from dataclasses import dataclass

from sluice.api.compare import compare
from sluice.api.comparison import Comparison
from sluice.api.fit import FittedModel
from sluice.base.errors import SettingsError
from sluice.data.table import load_table
from sluice.evaluation.losses import LossTable
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import ModelScores, score_baseline, score_candidate
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.simple_rules import BaselineSettings, choose_baseline
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version
from sluice.reports.notebook import fragment, heading, text_table
from sluice.training.weights import load_member


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluatedModel:
    """Losses and metrics of a trained model and of its reference on the same test rows."""

    model: FittedModel
    candidate: ModelScores
    reference: ModelScores
    reference_name: str
    """Name of the reference: the workload's baseline, simple rules, or a version."""

    @property
    def losses(self) -> LossTable:
        """Loss of each seed on each test row."""
        return self.candidate.by_seed.losses

    @property
    def reference_losses(self) -> LossTable:
        """Loss of the reference on each test row."""
        return self.reference.by_seed.losses

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the model by name, averaged over seeds and folds."""
        return self.candidate.by_seed.metrics

    @property
    def reference_metrics(self) -> dict[str, float]:
        """Metrics of the reference by name, averaged over seeds and folds."""
        return self.reference.by_seed.metrics

    def compare(
        self,
        settings: GateSettings = GateSettings(),  # noqa: B008 - frozen
    ) -> Comparison:
        """Compare the losses as the promotion gate does, without guards.

        The verdict is not recorded in a registry.
        """
        workload = self.model.workload
        return compare(
            self.losses,
            self.reference_losses,
            settings=settings,
            horizon_rows=workload.horizon_rows,
            unit=workload.loss_unit,
        )

    def _repr_html_(self) -> str:
        workload, reference_metrics = self.model.workload, self.reference_metrics
        return fragment(
            heading(
                f"Evaluation of {type(workload).__name__}",
                f"{self.losses.num_rows} test rows",
                "plain",
            ),
            text_table(
                ("metric", "candidate", self.reference_name),
                [
                    (
                        name,
                        f"{value:.4g}",
                        f"{reference_metrics[name]:.4g}" if name in reference_metrics else "",
                    )
                    for name, value in self.metrics.items()
                ],
                numbers=frozenset({1, 2}),
            ),
        )


def evaluate(model: FittedModel, *, reference: Version | None = None) -> EvaluatedModel:
    """Compute the losses of a trained model and of its reference on the test rows of all folds.

    Args:
        model: Result of ``sluice.fit``.
        reference: Version of the registry to compare with, such as the version in production. By
            default the workload's baseline or, if it has no baseline, the best simple rule of each
            fold.

    Raises:
        SettingsError: ``model`` is not a result of ``sluice.fit``.
        ContractError: The reference predicts another target, or cannot be scored on these rows.
        CodeMismatch: The reference was trained with other code.
    """
    if not isinstance(model, FittedModel):
        raise SettingsError(
            f"sluice.evaluate needs a trained model, got a {type(model).__name__}.",
            fix="Pass the result of sluice.fit: sluice.evaluate(sluice.fit(MyWorkload)).",
        )
    workload, store, frame = model.workload, model.store, model.frame
    candidate_scores = score_candidate(
        workload,
        frame,
        model.folds,
        model.trained.members,
        lambda member: load_member(member, workload, model.inputs.model, store),
        subject=model.trained.candidate,
    )
    if reference is None:
        baseline = choose_baseline(workload, frame, model.folds, BaselineSettings())
        scores = score_baseline(workload, frame, model.folds, baseline, subject=BASELINE)
        reference_scores = ModelScores(by_seed=scores, deployed=scores)
        reference_name = baseline.name
    else:
        raw = load_table(model.raw, store)
        reference_scores = score_version(reference, workload, raw, frame, model.folds, store)
        reference_name = f"version {reference.number}"
    return EvaluatedModel(
        model=model,
        candidate=candidate_scores,
        reference=reference_scores,
        reference_name=reference_name,
    )
