"""Records of data loaders: their settings, batches, epochs, and random states."""

from pydantic import Field

from sluice.base.settings import Record


class LoaderRecord(Record):
    """Settings of one DataLoader."""

    index: int
    dataset: str = Field(description="Class name of the dataset.")
    num_rows: int = Field(description="Length of the dataset; -1 if it has no length.")
    sampler: str = Field(description="Class name of the sampler.")
    batch_size: int = Field(description="Batch size; -1 if the loader does not form batches.")
    num_workers: int
    has_generator: bool
    is_stream: bool = Field(description="Whether the dataset is an IterableDataset.")
    shuffles: bool = Field(description="Whether the sampler shuffles the rows.")
    sets_epoch: bool = Field(
        description="Whether the sampler has a set_epoch() method, even if it is never called."
    )
    seed: int = Field(description="Seed of the sampler; -1 if the sampler has no seed.")
    replicas: int = Field(description="Number of shards; 0 if the sampler does not shard.")
    rank: int = Field(description="Index of this process's shard; -1 if there are no shards.")


class FieldRecord(Record):
    """Statistics of one tensor of a batch; NaN for an empty or complex tensor."""

    shape: tuple[int, ...]
    dtype: str
    smallest: float
    largest: float
    mean: float
    num_non_finite: int


class BatchRecord(Record):
    """Statistics and row fingerprints of one batch."""

    loader: int
    epoch: int = Field(description="Number of the iteration over this loader, from 1.")
    position: int = Field(description="Position of the batch in its epoch, from 0.")
    step: int = Field(description="Number of optimizer steps before the batch.")
    fields: tuple[FieldRecord, ...] = Field(
        description="Statistics of the first 8 tensors of the batch."
    )
    rows: tuple[int, ...] = Field(
        description="64-bit fingerprint of the content of each row of the first tensor. Rows with "
        "equal values and dtype have equal fingerprints in every loader, process and run."
    )


class SketchRecord(Record):
    """A set of integers, or a deterministic sample of it (bottom-k sketch).

    Every integer is hashed to 64 bits, and the smallest hashes are kept. An incomplete sketch lacks
    all hashes above its largest hash. Several sketches are therefore compared only up to the
    smallest of these largest hashes.
    """

    values: tuple[int, ...] = Field(description="Distinct hashes in ascending order.")
    is_complete: bool = Field(description="Whether the sketch contains the whole set.")


class FloatFieldRecord(Record):
    """Values of one float tensor, from the first rows of each of the loader's first batches."""

    place: int = Field(
        description="Position of the tensor among the tensors of the batch, from 0. The tensor at "
        "0 is the input."
    )
    values: SketchRecord = Field(description="Sketch of the bit patterns of the values.")
    is_continuous: bool = Field(
        description="Whether at most 5% of the values repeat an earlier value of their column."
    )


class EpochRecord(Record):
    """One iteration over a loader.

    The first four epochs of a loader are recorded, and later epochs whose number is a power of two.
    A record is written when the epoch or the trace ends, or when the next epoch starts.
    """

    loader: int
    epoch: int = Field(description="Number of the iteration over this loader, from 1.")
    step: int = Field(description="Number of optimizer steps before the epoch.")
    sampler_epoch: int = Field(
        description="Epoch of the sampler, which set_epoch() sets; -1 if the sampler has no epoch."
    )
    num_batches: int
    num_indices: int = Field(
        description="Number of row indices from the sampler; 0 without a sampler."
    )
    first: tuple[int, ...] = Field(
        description="The first row indices from the sampler, at most 32."
    )
    order: str = Field(description="Digest of the row indices in their order.")
    rows: str = Field(
        description="Digest of the row indices, independent of their order. For the content of the "
        "rows, see the field contents."
    )
    row_numbers: SketchRecord = Field(description="Sketch of the row indices.")
    contents: SketchRecord = Field(
        description="Sketch of the row fingerprints of this epoch. Only the first batches of a "
        "loader, and batches at steps with statistics, are fingerprinted."
    )
    num_contents: int = Field(description="Number of fingerprinted rows of this epoch.")
    labels: dict[int, int] = Field(
        description="Number of rows by class label, in the fingerprinted batches. Empty without "
        "class labels, and with more than 64 distinct class labels."
    )
    fields: tuple[FloatFieldRecord, ...] = Field(
        (),
        description="Values of the float32 and float64 tensors in the first batches of the loader. "
        "Empty in later epochs. Also empty if only the first tensor, which is the input, has one "
        "of these types: the batch then has no float target.",
    )
    is_finished: bool = Field(description="Whether the iteration reached the end of the loader.")


class RandomStateRecord(Record):
    """Fingerprints of the global random states of the process."""

    step: int
    torch: int
    python: int
    numpy: int = Field(description="Fingerprint of the numpy state; 0 if numpy is not loaded.")


class StateLoadRecord(Record):
    """One call of ``load_state_dict``."""

    step: int
    what: str = Field(description="Role of the object: 'network', 'optimizer' or 'scheduler'.")
    kind: str = Field(description="Class name of the object whose state is loaded.")
    object_id: int = Field(description="Index of the object that loads the state; -1 if unknown.")
    num_keys: int = Field(description="Number of keys of the state dict.")
    num_loaded: int = Field(description="Number of keys of the state dict that the object expects.")
    num_aliased: int = Field(
        0,
        description="Number of tensors of the state dict that share memory with parameters of the "
        "network that loads it.",
    )
    content: int = Field(
        0,
        description="Fingerprint of the state dict of a network; 0 for an optimizer or scheduler. "
        "Also 0 if the state dict contains no float tensor, more than 1,024 of them, or float "
        "tensors on the meta device.",
    )
    num_missing: int = Field(
        description="Number of keys that the object expects and that the state dict lacks."
    )

    @property
    def role(self) -> str:
        """Role of the object that loads the state; stored in the field ``what``."""
        return self.what
