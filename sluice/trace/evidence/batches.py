"""What the loaders handed over: facts, fingerprints of rows, order of indices, random states."""

from pydantic import Field

from sluice.base.settings import Record


class LoaderFact(Record):
    """One DataLoader."""

    index: int
    dataset: str = Field(description="Class name.")
    num_rows: int = Field(description="-1 for a dataset without a length.")
    sampler: str
    batch_size: int = Field(description="-1 when it does not batch by itself.")
    num_workers: int
    has_generator: bool
    is_stream: bool = Field(description="Its dataset is iterated over, not indexed.")
    shuffles: bool = Field(description="Its sampler draws the order of the rows.")
    sets_epoch: bool = Field(description="Its sampler has a set_epoch().")
    seed: int = Field(description="Of its sampler; -1 when it has none of its own.")
    replicas: int = Field(description="Shards that its sampler makes; 0 when it makes none.")
    rank: int = Field(description="Shard that its sampler gives; -1 for none.")


class FieldFact(Record):
    """One tensor of a batch."""

    shape: tuple[int, ...]
    dtype: str
    smallest: float
    largest: float
    mean: float
    num_non_finite: int


class BatchPrint(Record):
    """One batch."""

    loader: int
    epoch: int = Field(description="Iterations of this loader, from 1.")
    position: int = Field(description="In its epoch, from 0.")
    step: int = Field(description="Steps made before it.")
    fields: tuple[FieldFact, ...]
    rows: tuple[int, ...] = Field(
        description="A 64-bit fingerprint of each row of the first tensor; equal rows have equal "
        "ones, in every loader, process and run."
    )


class SketchFact(Record):
    """A set of whole numbers, or a sample of it that is the same in every process.

    Every number is mixed to a 64-bit one, and the smallest are kept: those of two sets up to the
    smaller of their largest can be compared.
    """

    values: tuple[int, ...] = Field(description="Mixed numbers in order, each once.")
    is_whole: bool = Field(description="None was left out.")


class FieldPrint(Record):
    """The numbers of one tensor of floats, in the first rows of the first batches of an epoch."""

    place: int = Field(description="Among the tensors of a batch, from 0.")
    values: SketchFact = Field(description="Of its numbers, bit by bit.")
    is_continuous: bool = Field(description="Hardly any came twice in its column.")


class EpochPrint(Record):
    """One iteration over a loader, when it ended or the next one began.

    The first four of a loader have one, and later ones on powers of two.
    """

    loader: int
    epoch: int
    step: int = Field(description="Steps made before it began.")
    sampler_epoch: int = Field(description="As its sampler was told; -1 when it has none.")
    num_batches: int
    num_indices: int = Field(description="Row numbers that its sampler gave; 0 when it has none.")
    first: tuple[int, ...] = Field(description="The first row numbers, at most 32.")
    order: str = Field(description="Fingerprint of the row numbers in their order.")
    rows: str = Field(description="Fingerprint of the same row numbers in any order.")
    numbers: SketchFact = Field(description="Of the row numbers.")
    contents: SketchFact = Field(
        description="Of the fingerprints of rows, those of the first batches of a loader."
    )
    num_contents: int = Field(description="Rows that were fingerprinted.")
    labels: dict[int, int] = Field(
        description="Rows of each label, among the same rows; none when no tensor looks like one."
    )
    fields: tuple[FieldPrint, ...] = Field(
        (), description="Of batches with floats beside their first tensor: these may be targets."
    )
    is_finished: bool


class RandomPrint(Record):
    """Fingerprints of the random states of the process."""

    step: int
    torch: int
    python: int
    numpy: int = Field(description="0 when numpy is not loaded.")


class LoadFact(Record):
    """One ``load_state_dict``."""

    step: int
    what: str = Field(description="'network', 'optimizer' or 'scheduler'.")
    kind: str = Field(description="Class name of what it was loaded into.")
    subject: int
    num_keys: int = Field(description="Keys that were given.")
    num_loaded: int = Field(description="Of those, keys that were taken.")
    num_own: int = Field(0, description="Of those, tensors that are the network's own already.")
    content: int = Field(0, description="Fingerprint of a network's state; 0 for others.")
    num_missing: int
