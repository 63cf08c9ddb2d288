"""Imported predictions are the baseline only if each test row has exactly one finite output."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, GateBlocked, IntegrityError
from sluice.config.pipeline import digest_gate_settings
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.imported_baseline import (
    find_baseline,
    label_predictions,
    normalize_predictions,
    outputs_by_fold,
    store_predictions,
)
from sluice.evaluation.scoring import score_baseline
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import Clock
from tests.support.echo import Echo, EchoSettings

WHAT = "The predictions of mlflow:/echo/1"
NAMED = BaselineSettings(predictions="mlflow:/echo/1")
WORKLOAD = Echo(EchoSettings())
FRAME = WORKLOAD.compute_features(WORKLOAD.load_rows())
FOLDS = WORKLOAD.plan_folds(FRAME)
TABLE = pd.DataFrame({"row": FRAME.index, "prediction": np.arange(len(FRAME)) / 100})


def load_outputs(table: pd.DataFrame) -> dict[int, torch.Tensor]:
    table = normalize_predictions(table, FRAME.index, what=WHAT)
    return outputs_by_fold(table, WORKLOAD, FRAME, FOLDS, what=WHAT)


def test_newest_predictions_are_matched_by_label_and_scored_on_the_test_rows(
    tmp_path: Path,
) -> None:
    store, shuffled = ArtifactStore(tmp_path / "artifacts"), TABLE.sample(frac=1, random_state=0)
    at = datetime(2026, 3, 14, tzinfo=UTC)
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        args = ledger, "echo", NAMED, store, WORKLOAD, FRAME, FOLDS
        with pytest.raises(GateBlocked, match=r"mlflow:/echo/1, whose .* were not imported"):
            find_baseline(*args)
        for pipeline, table in (("echo", shuffled.assign(prediction=0.0)), ("other", TABLE)):
            receipt = store_predictions(
                normalize_predictions(table, FRAME.index, what=WHAT),
                store,
                pipeline=pipeline,
                source="mlflow:/echo/1",
                evidence={"trusted": False},
                at=at,
            )
            ledger.record_receipt(receipt)
        zeros = find_baseline(*args)
        newer_receipt = store_predictions(
            normalize_predictions(shuffled, FRAME.index, what=WHAT),
            store,
            pipeline="echo",
            source="mlflow:/echo/1",
            evidence={"trusted": False},
            at=at,
        )
        ledger.record_receipt(newer_receipt)
        newest = find_baseline(*args)
        scores = score_baseline(WORKLOAD, FRAME, FOLDS, newest, subject="baseline")
        store.path(newer_receipt.subject["predictions"]).unlink()
        with pytest.raises(IntegrityError):
            find_baseline(*args)

    assert newest.name == "mlflow:/echo/1"
    assert all(bool((output == 0).all()) for output in zeros.outputs.values())
    rows = np.concatenate([WORKLOAD.examples(FRAME, fold.test).rows for fold in FOLDS])
    expected = (TABLE["prediction"] - FRAME["echo"].to_numpy()).to_numpy()[rows] ** 2
    np.testing.assert_allclose(scores.losses.loss_SN[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.rename(columns={"row": "id"}), "must have the column 'row'"),
        (TABLE[["row"]], "a column for each output"),
        (pd.concat([TABLE, TABLE[:2]]), "got 2 duplicates; the first repeated row is 0"),
        (TABLE.assign(prediction="high"), "but these columns are not: prediction"),
        (TABLE.assign(prediction=TABLE["prediction"].mask(TABLE["row"] == 7)), "is row 7"),
        (TABLE.assign(prediction=np.inf), "899 of 899 rows are not"),
        (TABLE[:-3], "3 are missing; the first is row 896"),
        (TABLE.assign(row=TABLE["row"] - 5), r"are missing; the first is .* from -5 to 893"),
        (TABLE.assign(second=1.0), "must have 1 output for each row, .* got 2"),
        (TABLE[:0], "are missing; the first is row .* There are no predictions"),
    ],
)
def test_invalid_predictions_are_rejected(table: pd.DataFrame, message: str) -> None:
    with pytest.raises(ContractError, match=message) as error:
        load_outputs(table)

    assert error.value.what.startswith((WHAT, f"The outputs of {WHAT}"))


def test_number_of_predictions_of_a_model_is_checked() -> None:
    predicted = pd.DataFrame({"0": np.zeros(len(FRAME) - 1)})

    with pytest.raises(ContractError, match="899 rows, got 898 predictions"):
        label_predictions(predicted, FRAME, what=WHAT)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_dates_are_matched_in_any_notation(zone: str | None) -> None:
    index = pd.date_range("2026-03-01", periods=3, freq="D", tz=zone)
    labels = [str(time) for time in index]
    table = pd.DataFrame({"row": labels, "0": [1.0, 2.0, 3.0]})

    normalized = normalize_predictions(table, index, what=WHAT)

    assert list(normalized["row"]) == [time.isoformat() for time in index]
    with pytest.raises(ContractError, match="must have dates"):
        normalize_predictions(table.assign(row="soon"), index, what=WHAT)


def test_the_rules_digest_includes_the_model_and_is_unchanged_without_one() -> None:
    def digest_rules(baseline: BaselineSettings) -> str:
        return digest_gate_settings(baseline, GateSettings(), GuardSettings(), SuiteSettings())

    other = BaselineSettings(predictions="mlflow:/echo/2")
    assert len({digest_rules(BaselineSettings()), digest_rules(NAMED), digest_rules(other)}) == 3
    # Digest of the rules with this setting from before imported predictions.
    assert digest_rules(BaselineSettings(max_rows=100)) == OLD_RULES


OLD_RULES = "3a0c332088038960dccc9cb27ebdc0527fd2a994c61ebd10ca0af25b045d7f0f"
