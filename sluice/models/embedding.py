"""Embedding of an example: the input of the last linear layer of a network.

A network may name another layer in the class attribute ``embedding_layer``. Networks do not define
the embedding in a method, because this method would repeat most of ``forward()``, and the two could
differ.

Shape legend: B = examples, E = width of an embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput, input_length
from sluice.models.scaled import Scaled

REFERENCE_ROLE = "drift embedding"
"""Role of the artifact with the drift reference that is computed from embeddings."""

MAX_WIDTH = 128
"""Maximum number of values in an embedding. A count sketch reduces wider embeddings to this width,
so that samples of requests stay small."""

LAYER_ATTRIBUTE = "embedding_layer"
"""Class attribute of a network with the name of the layer whose input is the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Embeddings of a batch."""

    layer: str
    """Name of the layer that receives the embedding, as in ``named_modules()``."""

    values: NDArray[np.float32]
    """Embeddings (B, E)."""


def embed(model: nn.Module, x: ModelInput) -> Embedding:
    """Return the embeddings of a batch, from one forward pass in evaluation mode.

    The embedding is the input of the layer that ``embedding_layer`` of the network names. By
    default, it is the input of the ``nn.Linear`` that is called last. Axes between the first and
    the last, such as the tokens of a text, are averaged. Embed padded texts one by one, so that the
    mean does not include padding. An embedding of more than 128 values is reduced to 128 values by
    a count sketch, which changes squared distances by about 12 %.

    The hooks exist only during the call, so they cannot change the bits of other predictions.

    Args:
        model: Network, or a network in ``Scaled``.
        x: Inputs of B examples.

    Raises:
        ContractError: ``embedding_layer`` names no layer of the network, the network does not call
            the layer, or the layer receives no batch of floats.

    Cost:
        One forward pass.

    Source:
        Count sketch: Charikar, Chen & Farach-Colton (2002); its use for features: Weinberger et
        al. (2009), "Feature Hashing for Large Scale Multitask Learning", ICML.
    """
    network = model.network if isinstance(model, Scaled) else model
    last_call: list[tuple[str, object]] = []  # name and input of the layer that was called last

    def make_hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            last_call[:] = [(name, next(iter((*args, *kwargs.values())), None))]

        return record

    handles = [
        layer.register_forward_pre_hook(make_hook(name), with_kwargs=True)
        for name, layer in _candidate_layers(network).items()
    ]
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.inference_mode():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
        if was_training:
            model.train()
    layer_name, layer_input = last_call[0] if last_call else ("", None)
    values_BE = _average_positions(layer_input, network, layer_name, input_length(x))
    return Embedding(layer=layer_name or type(network).__name__, values=_reduce_width(values_BE))


def _candidate_layers(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers whose input may be the embedding, by name."""
    declared_layer = getattr(network, LAYER_ATTRIBUTE, None)
    layers = dict(network.named_modules())
    if declared_layer is None:
        return {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
    if declared_layer not in layers or not declared_layer:
        raise ContractError(
            f"{LAYER_ATTRIBUTE} of {type(network).__name__} must be the name of one of its layers, "
            f"got {declared_layer!r}.",
            fix=f"Use one of these layers: {', '.join(filter(None, layers))}.",
        )
    return {declared_layer: layers[declared_layer]}


def _average_positions(
    layer_input: object, network: nn.Module, layer_name: str, num_examples: int
) -> Tensor:
    """Return the mean of the layer's input over all axes between the first and the last."""
    network_name = type(network).__name__
    if layer_input is None:
        declared_layer = getattr(network, LAYER_ATTRIBUTE, None)
        missing_layer = "no nn.Linear" if declared_layer is None else f"no layer '{declared_layer}'"
        raise ContractError(
            f"{network_name} has no embedding, because its forward() calls {missing_layer}.",
            fix=f"Set the class attribute {LAYER_ATTRIBUTE} of the network to the name of a layer "
            "that forward() calls, or set drift: {embedding: null}.",
        )
    if (
        not isinstance(layer_input, Tensor)
        or not layer_input.is_floating_point()
        or layer_input.ndim < 2
        or len(layer_input) != num_examples
    ):
        received = type(layer_input).__name__
        if isinstance(layer_input, Tensor):
            received = f"{tuple(layer_input.shape)} {layer_input.dtype}"
        raise ContractError(
            f"Layer '{layer_name}' of {network_name} must receive floats of shape "
            f"({num_examples}, ..., width), got {received}.",
            fix=f"Name another layer in the class attribute {LAYER_ATTRIBUTE}.",
        )
    values = layer_input.detach().float().reshape(num_examples, -1, layer_input.shape[-1])
    return values.mean(dim=1).cpu()


def _reduce_width(embedding: Tensor) -> NDArray[np.float32]:
    """Return embeddings of at most ``MAX_WIDTH`` values, reduced by a count sketch if wider."""
    values: NDArray[np.float32] = embedding.numpy()
    width = values.shape[1]
    if width <= MAX_WIDTH:
        return values.copy()
    buckets, signs = _count_sketch(width)
    reduced = np.zeros((len(values), MAX_WIDTH), np.float32)
    for row, embedding_row in zip(reduced, values, strict=True):
        row[:] = np.bincount(buckets, weights=signs * embedding_row, minlength=MAX_WIDTH)
    return reduced


@lru_cache(maxsize=4)
def _count_sketch(width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the bucket in the sketch, and the sign, of each value of an embedding.

    Buckets and signs are derived from the width, so they are equal in training and serving.
    """
    rng = np.random.default_rng(width)
    return rng.integers(MAX_WIDTH, size=width), rng.choice([-1.0, 1.0], size=width)
