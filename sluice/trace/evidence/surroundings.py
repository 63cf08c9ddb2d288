"""What surrounds the loop: workers, wrappers, saved files, learning rates."""

from pydantic import Field

from sluice.settings import Record


class WorkerFact(Record):
    """A source of randomness that a loader's dataset holds, in one worker of one epoch."""

    loader: int
    epoch: int
    worker: int
    source: str = Field(description="Attribute of the dataset.")
    before: int = Field(description="Fingerprint of its state before the worker's first batch.")
    after: int = Field(description="After its first batch; the same when it was not used.")


class WrapperFact(Record):
    """A module that wraps a network for data parallel training."""

    kind: str = Field(description="Class name.")
    network: int = Field(description="That it wraps; -1 when that was never called by itself.")
    wrapper: int = Field(description="Its own index as a network; -1 when it was never called.")
    step: int


class SaveFact(Record):
    """One ``torch.save``."""

    step: int
    path: str = Field(description="'' when it is no path.")
    num_keys: int = Field(description="Of a mapping; 0 for anything else.")


class RateFact(Record):
    """The learning rates of an optimizer when they changed; thin when they do at every step."""

    step: int = Field(description="The step that is made with them.")
    optimizer: int
    rates: tuple[float, ...]


class ParallelFact(Record):
    """Norms of the parameters of one network of this rank, at a step that all ranks record."""

    step: int
    network: int
    norm: float = Field(description="Of all parameters together.")
    digest: str = Field(description="Of the same numbers; equal weights have equal ones.")
