"""Embedding of an example: what the last linear layer of a network receives.

A network may name another layer in the class attribute ``embedding_layer``. An attribute is used
instead of a second method beside ``forward()``, because a method would repeat the first half of
``forward()`` and could differ from it.

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
"""Role of an artifact of a version: the drift reference that is computed from embeddings."""

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

    The embedding is the input of the layer that ``embedding_layer`` of the network names, or by
    default of the last ``nn.Linear`` that is called. Axes between the first and the last, such as
    the tokens of a text, are averaged; embed padded texts one by one, so that padding does not
    count. More than 128 numbers are reduced to 128 by a count sketch, which changes squared
    distances by about 12 %.

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
    last_input: list[tuple[str, object]] = []  # name and input of the layer called last

    def make_hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            last_input[:] = [(name, next(iter((*args, *kwargs.values())), None))]

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
    name, value = last_input[0] if last_input else ("", None)
    values = _reduce_width(_average_positions(value, network, name, input_length(x)))
    return Embedding(layer=name or type(network).__name__, values=values)


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
            fix=f"Its layers are {', '.join(filter(None, layers))}.",
        )
    return {declared_layer: layers[declared_layer]}


def _average_positions(value: object, network: nn.Module, layer: str, num_examples: int) -> Tensor:
    """Return the mean of the layer's input over all axes between the first and the last."""
    name = type(network).__name__
    if value is None:
        declared_layer = getattr(network, LAYER_ATTRIBUTE, None)
        missing_layer = "no nn.Linear" if declared_layer is None else f"no layer '{declared_layer}'"
        raise ContractError(
            f"{name} has no embedding: it calls {missing_layer} in forward().",
            fix="Name a called layer, whose input is the embedding, in the class attribute "
            f"{LAYER_ATTRIBUTE} of the network, or set drift: {{embedding: null}}.",
        )
    if (
        not isinstance(value, Tensor)
        or not value.is_floating_point()
        or value.ndim < 2
        or len(value) != num_examples
    ):
        received = type(value).__name__
        if isinstance(value, Tensor):
            received = f"{tuple(value.shape)} {value.dtype}"
        raise ContractError(
            f"Layer '{layer}' of {name} must receive floats of shape ({num_examples}, ..., width), "
            f"got {received}.",
            fix=f"Name another layer in the class attribute {LAYER_ATTRIBUTE}.",
        )
    return value.detach().float().reshape(num_examples, -1, value.shape[-1]).mean(dim=1).cpu()


def _reduce_width(embedding: Tensor) -> NDArray[np.float32]:
    """Return embeddings of at most ``MAX_WIDTH`` numbers, reduced by a count sketch if wider."""
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

    Both are derived from the width, so they are equal in training and serving.
    """
    rng = np.random.default_rng(width)
    return rng.integers(MAX_WIDTH, size=width), rng.choice([-1.0, 1.0], size=width)
