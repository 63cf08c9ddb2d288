from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.models.causal_transformer import CausalTransformer
from sluice.models.embedding import MAX_WIDTH, embed
from sluice.models.image_cnn import ImageCnn
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.models.text_cnn import TextCnn


class Net(nn.Module):
    """Network whose layers are called in another order than they are registered."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.head, self.drop, self.body = nn.Linear(width, 1), nn.Dropout(0.5), nn.Linear(3, width)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.body(x))))


class Named(Net):
    embedding_layer: ClassVar[str] = "body"


class NoLinear(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


def test_embedding_is_the_input_of_the_last_called_linear_layer():
    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 3)

    found = embed(net, x)

    assert found.layer == "head"
    with torch.no_grad():
        np.testing.assert_array_equal(found.values, torch.relu(net.body(x)).numpy())
    assert net.training  # the mode is restored, and dropout was off


def test_embedding_layer_can_be_named_by_the_network():
    x = torch.randn(5, 3)

    found = embed(Named(), x)

    assert found.layer == "body"
    np.testing.assert_array_equal(found.values, x.numpy())


def test_inputs_of_a_scaled_network_are_scaled():
    x = torch.randn(50, 3) * 7 + 2
    scaled = Scaled.fit(Named(), x, x[:, :1], num_outputs=1, scale_inputs=True, scale_target=True)

    found = embed(scaled, x)

    np.testing.assert_allclose(found.values.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.values.std(axis=0), 1, atol=1e-6)


def test_image_and_text_networks_have_an_embedding():
    settings = ModelSettings(hidden=8, layers=2)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    images = embed(ImageCnn(3, 4, settings), torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    texts = Scaled(
        TextCnn(10, 2, settings),
        num_features=0,
        num_outputs=2,
        scale_inputs=False,
        scale_target=False,
    )
    found = embed(texts, {"ids": ids, "mask": ids > 0})

    assert (images.layer, images.values.shape) == ("head", (2, 64))
    assert (found.layer, found.values.shape) == ("head", (2, 8))


def test_embeddings_of_tokens_are_averaged():
    torch.manual_seed(0)
    net = CausalTransformer(12, 12, ModelSettings(hidden=8, layers=1, heads=2)).eval()
    ids = torch.randint(12, (3, 6))
    received = []
    handle = net.head.register_forward_pre_hook(lambda _, args: received.append(args[0]))
    with torch.no_grad():
        net(ids)
    handle.remove()

    found = embed(net, ids)

    assert found.values.shape == (3, 8)
    np.testing.assert_allclose(found.values, received[0].mean(dim=1).numpy(), atol=1e-5)


def test_embedding_changes_no_prediction_and_leaves_no_hook():
    torch.manual_seed(0)
    net = CausalTransformer(12, 12, ModelSettings(hidden=8, layers=2, heads=2)).eval()
    ids = torch.randint(12, (3, 6))
    with torch.inference_mode():
        before = net(ids)
        embed(net, ids)
        after = net(ids)

    assert torch.equal(before, after)
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_no_hook_remains_after_an_error():
    net = Net()

    with pytest.raises(RuntimeError):
        embed(net, torch.randn(5, 2))

    assert not any(module._forward_pre_hooks for module in net.modules())
    assert net.training


def test_wide_embeddings_are_projected_with_similar_distances():
    torch.manual_seed(0)
    net = Net(width=3000)
    x = torch.randn(30, 3)
    with torch.no_grad():
        full = torch.relu(net.body(x)).double()

    found = embed(net, x).values

    assert found.shape == (30, MAX_WIDTH)
    np.testing.assert_allclose(found[3], embed(net, x[3:4]).values[0], rtol=1e-4, atol=1e-5)
    ratio = torch.pdist(torch.from_numpy(found).double()) / torch.pdist(full)
    assert 0.85 < ratio.median() < 1.15
    assert ratio.std() < 0.12


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (NoLinear(), r"NoLinear has no embedding, because its forward\(\) calls no nn\.Linear"),
        (type("Wrong", (Net,), {"embedding_layer": "bodi"})(), "name of one of its layers, got 'b"),
        (type("Wrong", (Net,), {"embedding_layer": ""})(), "name of one of its layers, got ''"),
        (type("Unused", (Net,), {"embedding_layer": "unused"})(), "calls no layer 'unused'"),
    ],
)
def test_network_without_embedding_is_rejected_with_a_fix(net, message):
    with pytest.raises(ContractError, match=message) as caught:
        embed(net, torch.randn(5, 3))

    assert caught.value.fix


def test_embedding_without_batch_dimension_is_rejected():
    class Transposed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.unused(x[:2, :2].T)

    with pytest.raises(ContractError, match=r"floats of shape \(5, ..., width\), got \(2, 2\)"):
        embed(Transposed(), torch.randn(5, 3))
