"""The whole line on independent rows with ten classes."""

import dagster as dg
import numpy as np
import pytest

from sluice.assets.evaluation_record import Evaluation
from sluice.assets.promotion_verdict import PromotionDecision
from sluice.assets.resources import SluiceState
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings, defs_folder, find_pipeline
from sluice.evaluation.mcnemar import mcnemar
from sluice.pipelines.instance import open_instance
from tests.pipelines.conftest import home_at, ledger_of, run_line

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def pipeline() -> PipelineSettings:
    shipped = find_pipeline("digits", defs_folder())
    return shipped.model_copy(
        update={
            "training": shipped.training.model_copy(update={"max_epochs": 4, "batch_rows": 32}),
            "compute": shipped.compute.model_copy(update={"workers": 1}),
            "tracking": shipped.tracking.model_copy(update={"mode": "off"}),
        }
    )


@pytest.fixture(scope="module")
def home(pipeline, tmp_path_factory) -> Home:
    home = home_at(tmp_path_factory.mktemp("digits") / "home")
    run_line(pipeline, home)
    return home


def read_record(home: Home, kind, name: str):
    return kind.model_validate_json((home.records / "digits" / f"{name}.json").read_bytes())


def test_line_decides_with_block_length_1_on_independent_rows(home):
    verdict = read_record(home, PromotionDecision, "promotion_verdict").verdict

    assert verdict.outcome in ("PROMOTE", "REJECT", "EQUIVALENT", "INCONCLUSIVE")
    assert verdict.block_length == 1
    assert (verdict.num_rows, verdict.num_seeds, verdict.unit) == (899, 5, "nats")
    with ledger_of(home) as ledger:
        assert (ledger.production_number("digits") == 1) == verdict.passed


def test_both_arms_have_classification_metrics(home):
    evaluation = read_record(home, Evaluation, "evaluation")

    for metrics in (evaluation.candidate.metrics, evaluation.reference.metrics):
        assert {"macro_f1", "log_loss", "calibration_error", "auc", "loss"} <= metrics.keys()
        assert metrics["accuracy"] > 0.85
        assert np.isfinite(list(metrics.values())).all()
    assert "sharpe" not in evaluation.candidate.metrics


def test_mcnemar_test_is_in_the_metadata_of_the_verdict(home, pipeline):
    """Classification of independent rows (STAT-2)."""
    evaluation = read_record(home, Evaluation, "evaluation")
    ours, theirs = evaluation.mistakes(SluiceState.at(home).store)

    found = mcnemar(ours, theirs, alpha=pipeline.gate.alpha)

    assert len(found.tests) == 5
    accuracy = 1 - ours.loss_SN.mean()
    assert accuracy == pytest.approx(evaluation.candidate.metrics["accuracy"])
    with open_instance(home) as instance:
        key = dg.AssetKey(["digits", "promotion_verdict"])
        shown = instance.get_latest_materialization_event(key).asset_materialization.metadata
    assert shown["McNemar"].value == str(found)
