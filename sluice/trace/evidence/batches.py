"""What the loaders handed over: facts, fingerprints of rows, order of indices, random states."""

from pydantic import Field

from sluice.settings import Record


class LoaderFact(Record):
    """One DataLoader."""

    index: int
    dataset: str = Field(description="Class name.")
    num_rows: int = Field(description="-1 for a dataset without a length.")
    sampler: str
    batch_size: int = Field(description="-1 when it does not batch by itself.")
    num_workers: int
    has_generator: bool


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


class EpochPrint(Record):
    """One iteration over a loader, when it ended or the next one began.

    The first four of a loader have one, and later ones on powers of two.
    """

    loader: int
    epoch: int
    num_batches: int
    num_indices: int = Field(description="Row numbers that its sampler gave; 0 when it has none.")
    order: str = Field(description="Fingerprint of the row numbers in their order.")
    rows: str = Field(description="Fingerprint of the same row numbers in any order.")
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
    num_missing: int
