"""A workload fits arrays on the train rows of a fold, and encodes inputs with them."""

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
from tests.support.rents import CITIES, Rents, hashed
from tests.support.synthetic import SineWorkload

MLP = ModelSettings(architecture="mlp")


class Returning(SineWorkload):
    """Returns a given value from fit()."""

    value: Any = None

    def fit(self, train_frame: pd.DataFrame) -> Mapping[str, Any]:  # noqa: ARG002
        found: Mapping[str, Any] = self.value
        return found

    def encode(self, x: Any, state: Mapping[str, torch.Tensor]) -> Any:  # noqa: ARG002
        return x


def returning(value: Any) -> Returning:
    workload = Returning()
    workload.value = value
    return workload


def test_a_fold_is_fitted_on_its_train_rows_and_the_workload_itself_stays() -> None:
    workload = Rents()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    fitted = fit_workload(workload, frame, fold)

    assert torch.equal(torch.rand(1), expected), "the caller's generators are not used"
    assert workload.fitted_state is None
    state = fitted.fitted_state
    assert state is not None
    train = frame.iloc[fold.train.start : fold.train.stop]
    order = np.argsort(hashed(pd.Series(CITIES[:-1])))
    means = train.groupby("city")["rent"].mean()[np.array(CITIES[:-1])[order]]
    assert list(state) == ["cities", "rents"]
    assert state["cities"].dtype == torch.int64
    assert state["rents"].dtype == torch.float32
    assert np.allclose(state["rents"].numpy(), means)


def test_a_workload_without_fit_is_returned_itself_and_has_no_encoder() -> None:
    workload = SineWorkload()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]

    assert fit_workload(workload, frame, fold) is workload
    model = prepare_model(workload, MLP, workload.examples(frame, fold.train), seed=0)
    assert model.encoder is None
    assert not any("encoder" in name for name in model.state_dict())


def test_a_model_encodes_before_it_scales() -> None:
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
    # A city that no train row has gets the mean of the rents.
    unknown = {"city": torch.tensor([12345]), "rooms": torch.tensor([2.0])}
    found = fitted.encode(unknown, state)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found[0, 0, 0], state["rents"].mean())


def test_a_network_of_a_workload_that_was_not_fitted_is_refused() -> None:
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
def test_a_state_that_cannot_be_stored_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        fit_state(returning(value), pd.DataFrame())


def test_arrays_of_any_kind_become_tensors_and_their_digest_covers_their_bits() -> None:
    value = {"b": 2, "a": [1.5, 2.5], "c": torch.ones(2, 2).T, "d": np.arange(6)[::-2], "e": True}
    state = fit_state(returning(value), pd.DataFrame())

    assert list(state) == ["a", "b", "c", "d", "e"]
    assert [array.tolist() for array in state.values()] == [
        [1.5, 2.5],
        2,
        [[1, 1], [1, 1]],
        [5, 3, 1],
        True,
    ]
    changed = fit_state(returning(value | {"b": 3}), pd.DataFrame())
    reshaped = fit_state(returning(value | {"c": np.ones(4, np.float32)}), pd.DataFrame())
    digests = {digest_state(found) for found in (state, changed, reshaped)}
    assert len(digests) == 3
    assert digest_state(fit_state(returning(value), pd.DataFrame())) == digest_state(state)


@pytest.mark.parametrize(("own", "other"), [("fit", "encode"), ("encode", "fit")])
def test_fit_and_encode_belong_together(own: str, other: str) -> None:
    kind: type[Workload] = type("Half", (SineWorkload,), {own: getattr(Returning, own)})

    with pytest.raises(
        ContractError, match=rf"Half must implement both .* only {own}\(\)"
    ) as found:
        has_fitted_state(kind())

    assert other in found.value.fix


def test_an_encode_that_returns_no_tensor_is_refused() -> None:
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
