"""The first candidate is compared with imported predictions; missing ones are reported early."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from sluice.assets.evaluation_record import Evaluation
from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.evaluation.imported_baseline import normalize_predictions, store_predictions
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.pipelines.run import RunReport
from tests.pipelines.conftest import forget_promotion, ledger_of
from tests.pipelines.test_line import failure, materialize_alone, record_of

pytestmark = pytest.mark.slow

SOURCE = "mlflow:/echo/3"


def import_predictions(pipeline: PipelineSettings, home: Home, *, offset: float) -> None:
    """Import the targets plus an offset, whose loss is the square of the offset."""
    workload = resolve(pipeline).workload
    frame = workload.compute_features(workload.load_rows())
    table = frame[["echo"]].add(offset).reset_index(names="row")
    receipt = store_predictions(
        normalize_predictions(table, frame.index, what=SOURCE),
        ArtifactStore(home.artifacts),
        pipeline=pipeline.name,
        source=SOURCE,
        evidence={"trusted": False},
        at=datetime.now(UTC),
    )
    with ledger_of(home) as ledger:
        ledger.record_receipt(receipt)


def test_first_candidate_is_compared_with_imported_predictions(
    echo: PipelineSettings, green: tuple[Home, RunReport]
) -> None:
    home, _ = green
    baseline = BaselineSettings(predictions=SOURCE)
    pipeline = echo.model_copy(update={"baseline": baseline})

    # With a version in production, the predictions are not read.
    assert materialize_alone(pipeline, home, "trained_models").success
    forget_promotion(home, register_version=False)
    early = materialize_alone(pipeline, home, "trained_models")
    assert not early.success
    assert f"baseline.predictions is {SOURCE}, whose predictions were not imported" in failure(
        early
    )
    assert f"sluice registry import {SOURCE} --pipeline echo" in failure(early)

    import_predictions(pipeline, home, offset=0.5)
    assert materialize_alone(pipeline, home, "trained_models").success
    assert materialize_alone(pipeline, home, "evaluation").success
    verdict = materialize_alone(pipeline, home, "promotion_verdict")

    evaluation = record_of(home, Evaluation, "evaluation")
    assert evaluation.reference_name == SOURCE
    assert evaluation.reference.losses.subject == "baseline"
    assert evaluation.reference.metrics["loss"] == pytest.approx(0.25)
    (materialization,) = verdict.asset_materializations_for_node("echo__promotion_verdict")
    assert materialization.metadata["compared with"] == dg.TextMetadataValue(SOURCE)
    page = home.reports.rglob("*.html")
    assert any(f"echo against {SOURCE}" in path.read_text() for path in page)
