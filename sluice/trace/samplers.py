"""What a loader's sampler is: whether it shuffles, from which seed, and which shard it gives."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerFacts:
    """As torch's own and other libraries' samplers call it."""

    shuffles: bool
    sets_epoch: bool
    epoch: int
    """-1 when it has none."""
    seed: int
    """-1 when it has none."""
    replicas: int
    """0 when it makes no shards."""
    rank: int
    """-1 when it makes no shards."""


def sampler_facts(loader: Any) -> SamplerFacts:
    """Return the facts of a DataLoader's sampler, also of one inside of a batch sampler."""
    samplers = tuple(_samplers(loader))
    return SamplerFacts(
        shuffles=any(
            isinstance(s, _RANDOM) or getattr(s, "shuffle", False) is True for s in samplers
        ),
        sets_epoch=any(callable(getattr(s, "set_epoch", None)) for s in samplers),
        epoch=_number(samplers, ("epoch",), -1),
        seed=_number(samplers, ("seed",), -1),
        replicas=_number(samplers, ("num_replicas", "num_processes"), 0),
        rank=_number(samplers, ("rank", "process_index"), -1),
    )


def _samplers(loader: Any) -> Iterator[Any]:
    for first in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        sampler = first
        for _ in range(_DEEPEST):
            if sampler is None:
                break
            yield sampler
            inner = getattr(sampler, "batch_sampler", None)
            sampler = getattr(sampler, "sampler", None) if inner is None else inner


def _number(samplers: tuple[Any, ...], names: tuple[str, ...], missing: int) -> int:
    found = (getattr(sampler, name, None) for sampler in samplers for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool)), missing)
