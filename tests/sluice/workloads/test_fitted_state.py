"""Arrays that a workload fits on the train rows of a fold and uses to encode inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import DictRows
from sluice.models.settings import ModelSettings
from sluice.workloads.fitted_state import digest_state, fit_state, fit_workload, has_fitted_state
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload
from tests.support.rents import CITIES, Rents, hash_texts
from tests.support.synthetic import SineWorkload

MLP = ModelSettings(architecture="mlp")


class Returning(SineWorkload):
    """fit() returns the attribute ``value``."""

    value: Any = None

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:  # noqa: ARG002
        state: Mapping[str, Any] = self.value
        return state

    def encode(self, x: Any, state: Mapping[str, torch.Tensor]) -> Any:  # noqa: ARG002
        return x


def make_workload(value: Any) -> Returning:
    workload = Returning()
    workload.value = value
    return workload


def test_fit_uses_train_rows_and_does_not_change_the_workload() -> None:
    workload = Rents()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    fitted = fit_workload(workload, frame, fold)

    assert torch.equal(torch.rand(1), expected), (
        "fit_workload changed the state of the global generator"
    )
    assert workload.fitted_state is None
    state = fitted.fitted_state
    assert state is not None
    train = frame.iloc[fold.train.start : fold.train.stop]
    order = np.argsort(hash_texts(pd.Series(CITIES[:-1])))
    means = train.groupby("city")["rent"].mean()[np.array(CITIES[:-1])[order]]
    assert list(state) == ["cities", "rents"]
    assert state["cities"].dtype == torch.int64
    assert state["rents"].dtype == torch.float32
    assert np.allclose(state["rents"].numpy(), means)


def test_workload_without_fit_is_returned_unchanged_and_model_has_no_encoder() -> None:
    workload = SineWorkload()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]

    assert fit_workload(workload, frame, fold) is workload
    model = prepare_model(workload, MLP, workload.examples(frame, fold.train), seed=0)
    assert model.encoder is None
    assert not any("encoder" in name for name in model.state_dict())


def test_model_encodes_inputs_before_scaling() -> None:
    workload = Rents()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    fitted = fit_workload(workload, frame, fold)
    train = fitted.examples(frame, fold.train)
    model = prepare_model(fitted, MLP, train, seed=0)
    assert isinstance(train.x, DictRows)
    state = fitted.fitted_state
    assert state is not None
    encoded = fitted.encode(train.inputs, state)
    assert isinstance(encoded, torch.Tensor)

    assert model.num_features == 2
    assert torch.allclose(model.x_mean, encoded.mean(dim=(0, 1)), rtol=1e-5)
    expected = model.network((encoded - model.x_mean) / model.x_std) * model.y_std + model.y_mean
    assert torch.equal(model(train.inputs), expected)
    # A city without train rows is encoded as the mean rent.
    unknown = {"city": torch.tensor([12345]), "rooms": torch.tensor([2.0])}
    encoded_unknown = fitted.encode(unknown, state)
    assert isinstance(encoded_unknown, torch.Tensor)
    assert torch.equal(encoded_unknown[0, 0, 0], state["rents"].mean())


def test_model_of_an_unfitted_workload_is_rejected() -> None:
    workload = Rents()
    frame = workload.compute_features(workload.load_rows())
    train = workload.examples(frame, workload.plan_folds(frame)[0].train)

    with pytest.raises(ContractError, match=r"fit\(\) of Rents must be called before"):
        prepare_model(workload, MLP, train, seed=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, r"fit\(\) of Returning must return a dict of at least one array, got an empty dict"),
        ([1.0], "got list"),
        ({"a.b": 1.0}, "must name its arrays with letters, digits and underscores, got 'a.b'"),
        ({"words": np.array(["a", "b"])}, "'words' must be an array of numbers, got ndarray"),
        ({"mean": [1.0, np.nan]}, "'mean' must be finite"),
    ],
)
def test_fitted_state_that_cannot_be_stored_is_rejected(value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        fit_state(make_workload(value), pd.DataFrame())


def test_state_values_become_tensors_and_the_digest_depends_on_values_and_shapes() -> None:
    value = {"b": 2, "a": [1.5, 2.5], "c": torch.ones(2, 2).T, "d": np.arange(6)[::-2], "e": True}
    state = fit_state(make_workload(value), pd.DataFrame())

    assert list(state) == ["a", "b", "c", "d", "e"]
    assert [array.tolist() for array in state.values()] == [
        [1.5, 2.5],
        2,
        [[1, 1], [1, 1]],
        [5, 3, 1],
        True,
    ]
    changed = fit_state(make_workload(value | {"b": 3}), pd.DataFrame())
    reshaped = fit_state(make_workload(value | {"c": np.ones(4, np.float32)}), pd.DataFrame())
    digests = {digest_state(each) for each in (state, changed, reshaped)}
    assert len(digests) == 3
    assert digest_state(fit_state(make_workload(value), pd.DataFrame())) == digest_state(state)


@pytest.mark.parametrize(("implemented", "missing"), [("fit", "encode"), ("encode", "fit")])
def test_fit_without_encode_or_encode_without_fit_is_rejected(
    implemented: str, missing: str
) -> None:
    workload_class: type[Workload] = type(
        "Half", (SineWorkload,), {implemented: getattr(Returning, implemented)}
    )

    with pytest.raises(
        ContractError, match=rf"Half must implement both .* only {implemented}\(\)"
    ) as caught:
        has_fitted_state(workload_class())

    assert missing in caught.value.fix


def test_encode_that_does_not_return_a_tensor_is_rejected() -> None:
    class Wrong(Returning):
        def encode(self, x: Any, state: Mapping[str, torch.Tensor]) -> Any:  # noqa: ARG002
            return x.numpy()

    workload = Wrong()
    workload.value = {"a": 1.0}
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    fitted = fit_workload(workload, frame, fold)

    with pytest.raises(ContractError, match=r"encode\(\) of Wrong must return a tensor"):
        prepare_model(fitted, MLP, fitted.examples(frame, fold.train), seed=0)
