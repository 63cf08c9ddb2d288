"""Defaults of ``task = "classification"``; attributes of a workload override them."""

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.data.schema import Column, Schema
from sluice.workloads.classification import class_mistakes
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


class CustomClassifier(Classifier):
    loss_unit = "mistakes"

    def __init__(self) -> None:
        super().__init__()
        self.headline_metric = "accuracy"


def make_examples(workload: Workload):
    return workload.examples(workload.load_rows(), RowRange(start=0, stop=9))


def test_classification_task_sets_targets_losses_and_metrics():
    workload = Classifier()
    examples = make_examples(workload)
    output = torch.eye(3).repeat(3, 1) * 4

    assert examples.targets.tolist() == [0, 1, 2] * 3
    assert workload.output_shape(examples.targets) == (9, 3)
    expected = torch.nn.functional.cross_entropy(output, examples.targets)
    assert workload.losses(output, examples.targets).shape == (9,)
    assert workload.loss(output, examples.targets) == pytest.approx(float(expected))
    assert workload.mistakes(output.flip(1), examples.targets).tolist() == [1, 0, 1] * 3
    metrics = workload.metrics(output, examples, workload.load_rows())
    assert (metrics["accuracy"], metrics["loss"]) == (1.0, pytest.approx(float(expected)))
    assert (workload.loss_unit, workload.headline_metric) == ("nats", "macro_f1")
    assert not workload.scale_target


def test_a_row_with_a_non_finite_logit_is_a_mistake():
    logits = torch.tensor([[2.0, 1.0], [torch.nan, torch.nan], [torch.inf, 0.0], [0.0, 3.0]])

    assert class_mistakes(logits, torch.tensor([0, 0, 0, 1])).tolist() == [0.0, 1.0, 1.0, 0.0]


def test_regression_is_the_default_task():
    workload = Regression()
    examples = make_examples(workload)

    assert examples.targets.shape == (9, 1)
    assert workload.mistakes(examples.targets, examples.targets) is None
    assert set(workload.metrics(examples.targets, examples, workload.load_rows())) == {"loss"}
    assert (workload.loss_unit, workload.headline_metric) == ("target units squared", "loss")
    assert workload.scale_target
    assert Regression.loss_unit == "target units squared"


def test_attributes_of_a_workload_override_the_defaults_of_its_task():
    workload = CustomClassifier()

    assert (workload.loss_unit, workload.headline_metric) == ("mistakes", "accuracy")
    assert CustomClassifier.headline_metric == Classifier.loss_unit.replace("nats", "macro_f1")


def test_schemas_are_derived_from_columns_and_task():
    assert Regression().feature_schema == Schema(
        columns=(Column(name="a"), Column(name="b"), Column(name="y"))
    )
    assert Classifier.feature_schema.columns[-1] == Column(name="y", kind="int")
    assert Regression().raw_schema == Schema(columns=())
    assert DigitsWorkload.feature_schema.columns[-1].name == "ink"  # declared explicitly


def test_workload_without_feature_columns_is_rejected():
    class WithoutFeatureColumns(Regression):
        feature_columns = None

    with pytest.raises(ContractError, match="must declare 'feature_columns' and 'target_column'"):
        _ = WithoutFeatureColumns().feature_schema


def test_invalid_targets_classes_and_tasks_are_rejected():
    class TwoClasses(Classifier):
        classes = ("low", "high")

    class NoClasses(Classifier):
        classes = ()

    class Misspelled(Classifier):
        task = "clasification"

    with pytest.raises(ContractError, match="class numbers 0 to 1, got 2 at example 2"):
        make_examples(TwoClasses())
    with pytest.raises(ContractError, match="at least two classes, got 0"):
        make_examples(NoClasses())
    with pytest.raises(ContractError, match="'regression' or 'classification', got 'clas"):
        _ = Misspelled().loss_unit
