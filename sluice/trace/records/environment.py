"""Records of loader workers, data-parallel wrappers, files of states, and learning rates."""

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
    source: str = Field(
        description="Attribute path of the generator, such as 'dataset.transform.generator'."
    )
    before: int = Field(
        description="Fingerprint of the generator state before the batch. If the generator was "
        "created during the batch: fingerprint of its seed."
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

    A network and its wrapper get their network indices when they are first called. The record of
    the wrapper is then written again.
    """

    index: int = Field(
        description="Index of the wrapper, in order of creation. For a sharded network: number of "
        "wrappers plus its network index. -1 if the program itself reduces gradients."
    )
    kind: str = Field(
        description="Class name of the wrapper; 'FullyShardedDataParallel' for every sharded "
        "network; 'all_reduce' if the program itself reduces gradients."
    )
    network: int = Field(
        description="Network index of the wrapped network; -1 if only its wrapper calls it, or if "
        "there is no wrapper."
    )
    wrapper: int = Field(
        description="Network index of the wrapper itself, or of the sharded network; -1 before its "
        "first call, and if the program itself reduces gradients."
    )
    step: int = Field(description="Number of optimizer steps before the record.")


class StateSaveRecord(Record):
    """One call of ``torch.save``, or of ``state_dict()`` of a module.

    If there are many calls, only a sample of them is recorded.
    """

    step: int = Field(description="Number of optimizer steps before the call.")
    path: str = Field(description="Path of the file; '' if there is no path.")
    num_keys: int = Field(description="Number of keys of a saved mapping; 0 for other objects.")
    to: Literal["file", "memory"] = Field(
        description="'file' for ``torch.save``, 'memory' for ``state_dict()``."
    )
    content: int = Field(
        0,
        description="Fingerprint of the network state that is saved; 0 if no network state is "
        "saved. Also 0 in the cases of ``StateLoadRecord.content``.",
    )


class FileReadRecord(Record):
    """One call of ``torch.load``. If there are many calls, only a sample of them is recorded."""

    step: int = Field(description="Number of optimizer steps before the call.")
    path: str = Field(description="Path of the file; '' if there is no path.")
    states: tuple[StateKind, ...] = Field(
        description="Kinds of state dicts in the file, at the top level or one level below."
    )


class LearningRateRecord(Record):
    """Learning rates of an optimizer after a change.

    If there are many changes, a sample of them is recorded, and every change that more than doubles
    the largest learning rate.
    """

    step: int = Field(description="First step with these learning rates.")
    optimizer: int
    rates: tuple[float, ...] = Field(description="Learning rate of each parameter group.")


class RankWeightsRecord(Record):
    """Digest of this rank's copy of the parameters that must be equal on all ranks.

    Recorded after steps 1, 2, 4, 8 and so on. These are the same steps on all ranks.
    """

    step: int
    optimizer: int
    norm: float = Field(description="Norm of all these parameters together, after the step.")
    digest: str = Field(
        description="Digest of sampled values of these parameters. Equal parameters have equal "
        "digests."
    )
