"""``task = "classification"`` sets what a classifier needs; own choices replace it."""

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.data.schema import Column, Schema
from sluice.workloads.digits import DigitsWorkload
from sluice.workloads.workload import Workload


class Regression(Workload):
    feature_columns = ("a", "b")
    target_column = "y"

    def load_rows(self) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        return pd.DataFrame({"a": rng.normal(size=9), "b": 1.0, "y": [0, 1, 2] * 3})

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw


class Classifier(Regression):
    task = "classification"
    classes = ("low", "middle", "high")


class OwnChoices(Classifier):
    loss_unit = "mistakes"

    def __init__(self) -> None:
        super().__init__()
        self.headline_metric = "accuracy"


def examples(workload: Workload):
    return workload.examples(workload.load_rows(), RowRange(start=0, stop=9))


def test_a_classifier_has_class_numbers_log_losses_and_metrics():
    workload = Classifier()
    found = examples(workload)
    output = torch.eye(3).repeat(3, 1) * 4

    assert found.targets.tolist() == [0, 1, 2] * 3
    assert workload.output_shape(found.targets) == (9, 3)
    expected = torch.nn.functional.cross_entropy(output, found.targets)
    assert workload.losses(output, found.targets).shape == (9,)
    assert workload.loss(output, found.targets) == pytest.approx(float(expected))
    assert workload.mistakes(output.flip(1), found.targets).tolist() == [1, 0, 1] * 3
    metrics = workload.metrics(output, found, workload.load_rows())
    assert (metrics["accuracy"], metrics["loss"]) == (1.0, pytest.approx(float(expected)))
    assert (workload.loss_unit, workload.headline_metric) == ("nats", "macro_f1")
    assert not workload.scale_target


def test_a_regression_is_as_before():
    workload = Regression()
    found = examples(workload)

    assert found.targets.shape == (9, 1)
    assert workload.mistakes(found.targets, found.targets) is None
    assert set(workload.metrics(found.targets, found, workload.load_rows())) == {"loss"}
    assert (workload.loss_unit, workload.headline_metric) == ("target units squared", "loss")
    assert workload.scale_target
    assert Regression.loss_unit == "target units squared"


def test_own_choices_replace_those_of_the_task():
    workload = OwnChoices()

    assert (workload.loss_unit, workload.headline_metric) == ("mistakes", "accuracy")
    assert OwnChoices.headline_metric == Classifier.loss_unit.replace("nats", "macro_f1")


def test_columns_are_declared_once():
    assert Regression().feature_schema == Schema(
        columns=(Column(name="a"), Column(name="b"), Column(name="y"))
    )
    assert Classifier.feature_schema.columns[-1] == Column(name="y", kind="int")
    assert Regression().raw_schema == Schema(columns=())
    assert DigitsWorkload.feature_schema.columns[-1].name == "ink"  # its own


def test_a_workload_without_columns_is_refused():
    class Nothing(Regression):
        feature_columns = None

    with pytest.raises(ContractError, match="must declare 'feature_columns' and 'target_column'"):
        _ = Nothing().feature_schema


def test_targets_that_are_no_class_numbers_are_refused():
    class TwoClasses(Classifier):
        classes = ("low", "high")

    class NoClasses(Classifier):
        classes = ()

    class Misspelled(Classifier):
        task = "clasification"

    with pytest.raises(ContractError, match="class numbers 0 to 1, got 2 at example 2"):
        examples(TwoClasses())
    with pytest.raises(ContractError, match="at least two classes, got 0"):
        examples(NoClasses())
    with pytest.raises(ContractError, match="'regression' or 'classification', got 'clas"):
        _ = Misspelled().loss_unit
