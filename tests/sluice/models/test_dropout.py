"""TRAIN-1: changing the dropout rate during training equals building with that rate."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.models.build import build_network
from sluice.models.dropout import require_dropout, set_dropout
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.fold_run import train_fold_run
from sluice.training.settings import (
    _ARCHITECTURES_WITH_DROPOUT,
    TrainingChange,
    TrainSettings,
    may_change,
)
from sluice.tuning.records import ScheduleStep
from sluice.tuning.schedule_to_settings import settings_from_schedule
from sluice.tuning.spaces import TrialSettings
from tests.sluice.training.conftest import make_specs
from tests.sluice.training.test_fold_run import bits, ignore, interrupt_after

NETWORKS = [*sorted(_ARCHITECTURES_WITH_DROPOUT), "sluice.models.small_cnn:SmallCnn"]


class Own(nn.Linear):
    def set_dropout(self, rate: float) -> None:
        self.rate = rate


def make_network(name: str, layers: int, dropout: float) -> nn.Module:
    torch.manual_seed(0)
    settings = ModelSettings(architecture=name, hidden=8, layers=layers, dropout=dropout)
    return build_network(4, 1, settings)


def compute_outputs(network: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    return network.train()(
        torch.randn(16, 6, 4, generator=torch.Generator().manual_seed(2))[
            :, : 1 if isinstance(network, _cnn_class()) else 6
        ]
    )


def _cnn_class() -> type[nn.Module]:
    return type(make_network("sluice.models.small_cnn:SmallCnn", 1, 0.0))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("before", "after"), [(0.0, 0.6), (0.6, 0.2), (0.6, 0.0)])
def test_set_dropout_equals_building_with_that_rate(name, layers, before, after):
    changed, built = (make_network(name, layers, rate) for rate in (before, after))
    other = compute_outputs(changed)
    set_dropout(changed, after)

    assert repr(changed) == repr(built)
    assert torch.equal(compute_outputs(changed), compute_outputs(built))
    assert not torch.equal(compute_outputs(changed), other)


@pytest.mark.parametrize(
    "name", ["image_cnn:ImageCnn", "text_cnn:TextCnn", "causal_transformer:CausalTransformer"]
)
def test_set_dropout_supports_image_and_token_networks(name):
    settings = ModelSettings(architecture=f"sluice.models.{name}", hidden=8)
    changed, built = (
        build_network(5, 5, settings.model_copy(update={"dropout": rate})) for rate in (0.6, 0.2)
    )
    set_dropout(changed, 0.2)

    assert repr(changed) == repr(built)


def test_custom_network_implements_set_dropout():
    network = Own(2, 1)
    scaled = Scaled(network, num_features=2, num_outputs=1, scale_inputs=True, scale_target=True)
    set_dropout(scaled, 0.3)

    assert network.rate == 0.3
    with pytest.raises(
        ContractError, match=r"LastRowLinear cannot be changed.*set_dropout\(rate\)"
    ):
        require_dropout(build_network(2, 1, ModelSettings(architecture="linear")))


@pytest.mark.parametrize("architecture", ["gru", "transformer"])
def test_fold_run_interrupted_around_a_dropout_change_resumes_with_identical_bits(
    tmp_path, architecture
):
    model = ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.1)
    path, rate = "model.dropout", "training.learning_rate"
    schedule = (
        ScheduleStep(from_epoch=0, params={path: 0.2, rate: 0.01}),
        ScheduleStep(from_epoch=1, params={path: 0.6, rate: 0.01}),
    )
    setup = settings_from_schedule(TrialSettings(model=model), schedule, where="test")
    assert setup.training.changes == (TrainingChange(from_epoch=1, dropout=0.6),)
    assert setup.training.dropout_at(1) is None

    def make_spec(folder, changes):
        options = {"max_epochs": 3, "num_rows": 170, "changes": changes, "model": setup.model}
        return make_specs(tmp_path / folder, **options)[0]

    whole, cut, plain = (
        make_spec("a", setup.training.changes),
        make_spec("b", setup.training.changes),
        make_spec("c", ()),
    )
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, 2)

    assert bits(train_fold_run(cut, ignore)) == bits(expected)
    assert bits(train_fold_run(plain, ignore)) != bits(expected)


def test_unsupported_dropout_change_is_rejected_before_the_first_epoch(tmp_path):
    (spec,) = make_specs(
        tmp_path,
        model=ModelSettings(architecture="linear"),
        changes=(TrainingChange(from_epoch=3, dropout=0.5),),
    )
    received = []
    with pytest.raises(ContractError, match="LastRowLinear cannot be changed"):
        train_fold_run(spec, received.append)

    assert [event.kind for event in received] == ["started"]


def test_dropout_may_change_only_with_networks_that_support_it():
    assert may_change("model.dropout", TrainSettings(), "gru")
    assert not may_change("model.dropout", TrainSettings(), "linear")
    assert not may_change("model.dropout", TrainSettings())
    assert "dropout" not in TrainingChange(from_epoch=1, clip_norm=1.0).model_dump()
