"""Records of what surrounds the training loop: workers, wrappers, files, learning rates."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

StateKind = Literal["network", "optimizer", "scheduler"]


class WorkerRandomnessRecord(Record):
    """One random generator in one worker of one epoch: of the dataset, collate_fn or process.

    The first two batches of every worker process are recorded.
    """

    loader: int
    epoch: int
    worker: int
    batch: int = Field(description="Number of the batch in this worker process: 1 or 2.")
    source: str = Field(description="Path of the generator, such as 'dataset.transform.generator'.")
    before: int = Field(
        description="Fingerprint of the generator state before the batch; of its seed if the batch "
        "created the generator."
    )
    after: int = Field(
        description="Fingerprint of the generator state after the batch. It equals that before the "
        "batch if the generator was not used."
    )
    reseeded: Literal["no", "yes", "unknown"] = Field(
        description="Whether the generator was seeded again during the batch, for example for each "
        "row; 'unknown' for generators that do not show this."
    )
    content: int = Field(0, description="Fingerprint of the batch; 0 if it contains no tensor.")


class DataParallelRecord(Record):
    """A data-parallel wrapper, a sharded network, or gradients that the program reduces itself.

    Written again when a network index becomes known at the first call.
    """

    index: int = Field(
        description="Index of the wrapper, in order of creation. For a sharded network, its index "
        "plus the number of wrappers; -1 if the program itself reduces gradients."
    )
    kind: str = Field(
        description="Class name; 'all_reduce' if the program itself reduces gradients."
    )
    network: int = Field(
        description="Network index of the wrapped network; -1 if it is called only by its wrapper."
    )
    wrapper: int = Field(
        description="Network index of the wrapper itself, or of the sharded network; -1 if it is "
        "not called."
    )
    step: int = Field(description="Number of optimizer steps before the record.")


class StateSaveRecord(Record):
    """One call of ``torch.save``, or of ``state_dict()`` of a module."""

    step: int
    path: str = Field(description="Path of the file; '' if there is no path.")
    num_keys: int = Field(description="Number of keys of a saved mapping; 0 for other objects.")
    to: Literal["file", "memory"] = Field(description="'memory' for ``state_dict()``.")
    content: int = Field(
        0,
        description="Fingerprint of the network state that is saved; 0 if there is no such state.",
    )


class FileReadRecord(Record):
    """One ``torch.load``."""

    step: int
    path: str = Field(description="Path of the file; '' if there is no path.")
    states: tuple[StateKind, ...] = Field(
        description="Kinds of states in the file, at the top or one level deep."
    )


class LearningRateRecord(Record):
    """Learning rates of an optimizer after a change. Of many changes only a sample is recorded."""

    step: int = Field(description="First step with these learning rates.")
    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each parameter group.")


class RankWeightsRecord(Record):
    """Digest of the parameters that all ranks share, on this rank.

    Recorded at the same steps on all ranks: at powers of two.
    """

    step: int
    optimizer: int
    norm: float = Field(description="Norm of all shared parameters together, after the step.")
    digest: str = Field(
        description="Digest of sampled values of the shared parameters; equal weights have equal "
        "digests."
    )
