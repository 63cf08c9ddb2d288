"""Reads the properties of a DataLoader's sampler: shuffling, seed and shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

_RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_MAX_DEPTH = 4
"""Maximum number of nested samplers that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerProperties:
    """Properties of a sampler, read from the attributes that torch and other libraries use."""

    shuffles: bool
    """Whether the sampler shuffles the rows."""
    has_set_epoch: bool
    """Whether the sampler has a method ``set_epoch``."""
    epoch: int
    """Epoch of the sampler; -1 if it has no epoch."""
    seed: int
    """Seed of the sampler; -1 if it has no seed."""
    num_shards: int
    """Number of shards; 0 if the sampler does not shard."""
    shard_index: int
    """Index of the shard; -1 if the sampler does not shard."""


def sampler_properties(loader: Any) -> SamplerProperties:
    """Return the properties of a DataLoader's sampler. It may be nested in a batch sampler."""
    samplers = tuple(_samplers(loader))
    return SamplerProperties(
        shuffles=any(
            isinstance(s, _RANDOM_SAMPLERS) or getattr(s, "shuffle", False) is True
            for s in samplers
        ),
        has_set_epoch=any(callable(getattr(s, "set_epoch", None)) for s in samplers),
        epoch=_first_integer(samplers, ("epoch",), -1),
        seed=_first_integer(samplers, ("seed",), -1),
        num_shards=_first_integer(samplers, ("num_replicas", "num_processes"), 0),
        shard_index=_first_integer(samplers, ("rank", "process_index"), -1),
    )


def _samplers(loader: Any) -> Iterator[Any]:
    """Yield the sampler and the batch sampler of a loader, each with the samplers nested in it."""
    for outer in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        sampler = outer
        for _ in range(_MAX_DEPTH):
            if sampler is None:
                break
            yield sampler
            inner = getattr(sampler, "batch_sampler", None)
            sampler = getattr(sampler, "sampler", None) if inner is None else inner


def _first_integer(samplers: tuple[Any, ...], names: tuple[str, ...], default: int) -> int:
    values = (getattr(sampler, name, None) for sampler in samplers for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool)), default)
