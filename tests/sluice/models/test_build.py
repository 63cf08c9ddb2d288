"""TRAIN-1: networks are built from a built-in architecture or an import path."""

import pytest
import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.models.build import ARCHITECTURES, build_network
from sluice.models.settings import ModelSettings


class Own(nn.Module):
    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.head = nn.Linear(num_features, num_outputs + settings.hidden)


class Wide(nn.Module):
    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        widths = settings.options["widths"]
        self.body = nn.Linear(num_features, widths[0], bias=settings.options.get("bias", True))
        self.head = nn.Linear(widths[0], num_outputs)


class WithoutArguments(nn.Module):
    pass


def no_module(*_: object) -> nn.Module:
    raise AssertionError("only a class of networks may be called")


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("layers", [1, 2])
def test_built_in_architecture_maps_windows_to_outputs(name, layers):
    network = build_network(9, 2, ModelSettings(architecture=name, hidden=4, layers=layers))

    assert network(torch.randn(5, 22, 9)).shape == (5, 2)


def test_same_seed_gives_the_same_initial_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build_network(3, 1, ModelSettings()).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_custom_network_receives_sizes_and_settings():
    network = build_network(3, 1, ModelSettings(architecture=f"{__name__}:Own", hidden=6))

    assert isinstance(network, Own)
    assert network.head.weight.shape == (7, 3)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("grru", "Did you mean 'gru'"),
        ("no_such_module_here:Net", "no_such_module_here"),
        (f"{__name__}:Owm", "Did you mean 'Own'"),
        (f"{__name__}:no_module", "torch.nn.Module, got an object of type builtins.func"),
        (f"{__name__}:WithoutArguments", "three arguments"),
        ("sklearn.linear_model:LinearRegression", "A candidate must be a torch.nn.Module"),
        ("sklearn.linear_model:LinearRegression", "got the class sklearn.*LinearRegression"),
    ],
)
def test_invalid_architecture_is_rejected(name, cause):
    with pytest.raises(SettingsError, match=cause):
        build_network(3, 1, ModelSettings(architecture=name))


def test_custom_network_receives_options():
    options = {"widths": [5], "bias": False}
    settings = ModelSettings.parse(
        {"architecture": f"{__name__}:Wide", "options": options}, where="defs.yaml"
    )
    network = build_network(3, 1, settings)

    assert (network.body.out_features, network.body.bias) == (5, None)
    assert ModelSettings.parse(settings.model_dump(mode="json"), where="lineage") == settings


@pytest.mark.parametrize("name", [*ARCHITECTURES, "sluice.models.small_cnn:SmallCnn"])
def test_options_of_a_network_without_options_are_rejected(name):
    settings = ModelSettings(architecture=name, options={"width": 5})
    with pytest.raises(SettingsError, match=r"has no options, got width.*settings\.options"):
        build_network(16, 1, settings)


def test_empty_options_are_omitted_from_the_dump():
    assert "options" not in ModelSettings(options={}).model_dump(mode="json")


@pytest.mark.parametrize(
    ("value", "received"), [(None, "NoneType"), ({"a": 1}, "dict"), ([1, [1]], "a list with list")]
)
def test_option_that_is_not_a_plain_value_is_rejected(value, received):
    with pytest.raises(SettingsError, match=rf"options\.width.*a list of these, got {received}"):
        ModelSettings.parse({"options": {"width": value}}, where="defs.yaml")
