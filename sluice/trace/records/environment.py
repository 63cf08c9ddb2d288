"""Records of what surrounds the training loop: workers, wrappers, files, learning rates."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

StateKind = Literal["network", "optimizer", "scheduler"]


class WorkerRandomnessRecord(Record):
    """One random generator in a DataLoader worker, before and after the worker loads one batch.

    The generator belongs to the dataset, to collate_fn or to the worker process. The first two
    batches of every worker process are recorded.
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
        description="Fingerprint of the generator state after the batch. Equal to "
        "``before`` if the batch did not use the generator."
    )
    reseeded: Literal["no", "yes", "unknown"] = Field(
        description="Whether the generator was seeded again during the batch, for example for each "
        "row; 'unknown' if the generator does not provide its seed."
    )
    content: int = Field(0, description="Fingerprint of the batch; 0 if it contains no tensor.")


class DataParallelRecord(Record):
    """A data-parallel wrapper, a sharded network, or gradients that the program reduces itself.

    A network and its wrapper have no network index before they are called. The record is written
    again when one of them gets its index.
    """

    index: int = Field(
        description="Index of the wrapper, in order of creation. For a sharded network: number of "
        "wrappers plus its network index. -1 if the program itself reduces gradients."
    )
    kind: str = Field(
        description="Class name; 'all_reduce' if the program itself reduces gradients."
    )
    network: int = Field(
        description="Network index of the wrapped network; -1 if only its wrapper calls it, or if "
        "there is no wrapper."
    )
    wrapper: int = Field(
        description="Network index of the wrapper itself, or of the sharded network; -1 if it was "
        "not called yet, or if there is no wrapper."
    )
    step: int = Field(description="Number of optimizer steps before the record.")


class StateSaveRecord(Record):
    """One call of ``torch.save``, or of ``state_dict()`` of a module.

    Of many calls only a sample is recorded.
    """

    step: int = Field(description="Number of optimizer steps before the call.")
    path: str = Field(description="Path of the file; '' if there is no path.")
    num_keys: int = Field(description="Number of keys of a saved mapping; 0 for other objects.")
    to: Literal["file", "memory"] = Field(
        description="'file' for ``torch.save``, 'memory' for ``state_dict()``."
    )
    content: int = Field(
        0,
        description="Fingerprint of the network state that is saved; 0 without such a state, or if "
        "it is too large or contains no float tensor.",
    )


class FileReadRecord(Record):
    """One call of ``torch.load``. Of many calls only a sample is recorded."""

    step: int = Field(description="Number of optimizer steps before the call.")
    path: str = Field(description="Path of the file; '' if there is no path.")
    states: tuple[StateKind, ...] = Field(
        description="Kinds of states in the file, at the top level or one level below."
    )


class LearningRateRecord(Record):
    """Learning rates of an optimizer after a change.

    Of many changes, a sample is recorded, and every change that more than doubles the largest rate.
    """

    step: int = Field(description="First step with these learning rates.")
    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each parameter group.")


class RankWeightsRecord(Record):
    """Digest of this rank's values of the parameters that all ranks share.

    Recorded after steps 1, 2, 4, 8 and so on, which are the same steps on all ranks.
    """

    step: int
    optimizer: int
    norm: float = Field(description="Norm of all shared parameters together, after the step.")
    digest: str = Field(
        description="Digest of sampled values of the shared parameters; equal weights have equal "
        "digests."
    )
