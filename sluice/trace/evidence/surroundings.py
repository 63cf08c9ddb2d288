"""What surrounds the loop: workers, wrappers, files, learning rates."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

State = Literal["network", "optimizer", "scheduler"]


class WorkerFact(Record):
    """A source of randomness that a loader's dataset holds, in one worker of one epoch.

    The first two batches of every worker process are looked at.
    """

    loader: int
    epoch: int
    worker: int
    batch: int = Field(description="Of this worker process: 1 or 2.")
    source: str = Field(description="Where it is held, such as 'dataset.transform.generator'.")
    before: int = Field(description="Fingerprint of its state before the batch.")
    after: int = Field(description="After the batch; the same when it was not used.")
    reseeded: Literal["no", "yes", "unknown"] = Field(
        description="Whether it was seeded anew in between, as for each row; some cannot tell."
    )
    content: int = Field(0, description="Fingerprint of the batch; 0 when it has no tensor.")


class WrapperFact(Record):
    """What makes a network data parallel: a module around it, or gradients reduced by hand.

    Written anew when it was called for the first time.
    """

    index: int = Field(description="Of the wrapper, in the order of their making.")
    kind: str = Field(description="Class name; 'all_reduce' for gradients reduced by hand.")
    network: int = Field(description="That it wraps; -1 when that was never called by itself.")
    wrapper: int = Field(description="Its own index as a network; -1 when it was never called.")
    step: int


class SaveFact(Record):
    """One ``torch.save``, or a ``state_dict()`` that the program took of a network."""

    step: int
    path: str = Field(description="'' when it is no path.")
    num_keys: int = Field(description="Of a mapping; 0 for anything else.")
    to: Literal["file", "memory"]
    content: int = Field(0, description="Fingerprint of a network's state in it; 0 for none.")


class ReadFact(Record):
    """One ``torch.load``."""

    step: int
    path: str = Field(description="'' when it is no path.")
    states: tuple[State, ...] = Field(description="What is in it, up to one level deep.")


class RateFact(Record):
    """The learning rates of an optimizer when they changed; thin when they do at every step."""

    step: int = Field(description="The step that is made with them.")
    optimizer: int
    rates: tuple[float, ...]


class ParallelFact(Record):
    """What the parameters that all ranks should share are on this rank, at a step all record.

    Those steps are the powers of two.
    """

    step: int
    optimizer: int
    norm: float = Field(description="Of all parameters together, after the step.")
    digest: str = Field(description="Of a sample of the same numbers; equal weights, equal ones.")
