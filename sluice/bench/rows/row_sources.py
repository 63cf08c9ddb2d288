"""Speed of every row source, compared with a minimal loop that reads the same rows."""

import random
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.data.packing.pack import pack
from sluice.data.rows import (
    DatasetRows,
    ImageFolderRows,
    ImageShardRows,
    ShardRows,
    TableRows,
    TokenBlocks,
    TokenRows,
    write_tokens,
)
from sluice.data.rows.order import FeistelOrder
from sluice.data.rows.protocol import ModelInput, RowSource, input_parts

_BATCH_ROWS = 64
_IMAGE_PIXELS = 48
_VOCAB_SIZE = 5_000


class SourceSpeed(Record):
    """Speed of one row source, compared with a minimal loop: its baseline."""

    source: str = Field(description="Class of the source, and a description of its rows.")
    baseline: str = Field(description="Description of the loop, which reads the same rows.")
    rows_per_s: float = Field(description="Speed of the source in its fastest round [rows/s].")
    baseline_rows_per_s: float = Field(
        description="Speed of the baseline in its fastest round [rows/s]."
    )
    ratio: float = Field(description="Speed of the source divided by the speed of the baseline.")


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A row source, and the loop that reads the same rows (its baseline)."""

    source_name: str
    baseline_name: str
    source: RowSource
    read_baseline: Callable[[Tensor], ModelInput]


def measure_sources(
    *, num_rows: int, num_rounds: int, seed: int, folder: Path
) -> Iterator[SourceSpeed]:
    """Yield the speed of every source on generated data.

    Source and baseline read the same batches of 64 shuffled rows in turns. They must return the
    same values.

    Args:
        num_rows: Number of rows of a table; the numbers of documents and images are smaller.
        num_rounds: Number of times that each source and its baseline are timed.
        seed: Seed of the data and the order.
        folder: Empty folder for the files.

    Raises:
        ContractError: A source and its baseline return different values.
    """
    rng = np.random.default_rng(seed)
    for name, make_comparisons in (
        ("tables", _compare_tables),
        ("documents", _compare_documents),
        ("blocks", _compare_blocks),
        ("images", _compare_images),
        ("datasets", _compare_datasets),
        ("records", _compare_records),
    ):
        source_folder = folder / name
        source_folder.mkdir()
        for comparison in make_comparisons(num_rows, rng, source_folder):
            yield _measure(comparison, num_rounds, seed)


def _measure(comparison: _Comparison, num_rounds: int, seed: int) -> SourceSpeed:
    num_batches = max(1, min(30, len(comparison.source) // _BATCH_ROWS))
    order = FeistelOrder(len(comparison.source), seed=seed).part(0, num_batches * _BATCH_ROWS)
    batches = order.split(_BATCH_ROWS)
    _require_same_values(comparison, batches[0])
    readers: dict[str, Callable[[Tensor], ModelInput]] = {
        "source": comparison.source.__getitem__,
        "baseline": comparison.read_baseline,
    }
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for round_number in range(num_rounds + 1):
        for name in readers if round_number % 2 else reversed(readers):
            read = readers[name]
            run_start_s = time.perf_counter()
            for rows in batches:
                read(rows)
            if round_number:  # the first round only fills the caches
                seconds[name].append(time.perf_counter() - run_start_s)
    return SourceSpeed(
        source=comparison.source_name,
        baseline=comparison.baseline_name,
        rows_per_s=len(order) / min(seconds["source"]),
        baseline_rows_per_s=len(order) / min(seconds["baseline"]),
        ratio=min(seconds["baseline"]) / min(seconds["source"]),
    )


def _require_same_values(comparison: _Comparison, rows: Tensor) -> None:
    source_parts = input_parts(comparison.source[rows])
    baseline_parts = input_parts(comparison.read_baseline(rows))
    if not all(torch.equal(a, b) for a, b in zip(source_parts, baseline_parts, strict=True)):
        raise ContractError(
            f"{comparison.source_name} and '{comparison.baseline_name}' must return the same "
            "values.",
            fix="The source or the baseline reads other rows. Report this as a bug.",
        )


def _compare_tables(num_rows: int, rng: np.random.Generator, folder: Path) -> Iterator[_Comparison]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    matrix = rng.normal(size=(num_rows, 16)).astype(np.float32)
    columns = {f"c{n}": matrix[:, n] for n in range(16)}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    windows = torch.from_numpy(matrix).unfold(0, 64, 1).transpose(1, 2).contiguous()
    yield _Comparison(
        "TableRows, windows of 64 x 16",
        "a tensor in memory",
        TableRows(folder / "table.parquet", cache=folder, seq_len=64),
        lambda rows: windows.index_select(0, rows),
    )


def _compare_documents(
    num_rows: int, rng: np.random.Generator, folder: Path
) -> Iterator[_Comparison]:
    documents = make_documents(num_rows // 4, rng)
    write_tokens(folder / "tokens", documents, vocab_size=_VOCAB_SIZE)
    tensors = [torch.from_numpy(document) for document in documents]

    def pad(rows: Tensor) -> ModelInput:
        batch = [tensors[row] for row in rows.tolist()]
        lengths = torch.tensor([len(document) for document in batch])
        ids = nn.utils.rnn.pad_sequence(batch, batch_first=True)
        return {"ids": ids, "mask": torch.arange(ids.shape[1]) < lengths[:, None]}

    yield _Comparison(
        "TokenRows, padded documents",
        "torch's pad_sequence of tensors in memory",
        TokenRows(folder / "tokens", vocab_size=_VOCAB_SIZE),
        pad,
    )


def _compare_blocks(num_rows: int, rng: np.random.Generator, folder: Path) -> Iterator[_Comparison]:
    tokens = rng.integers(0, _VOCAB_SIZE, num_rows * 16).astype(np.uint16)
    np.save(folder / "tokens.npy", tokens)
    mapped_tokens = np.load(folder / "tokens.npy", mmap_mode="r")

    def stack(rows: Tensor) -> ModelInput:
        blocks = [
            mapped_tokens[256 * row : 256 * row + 256].astype(np.int64) for row in rows.tolist()
        ]
        return torch.stack([torch.from_numpy(block) for block in blocks])

    yield _Comparison(
        "TokenBlocks, 256 tokens",
        "slices of a memory map, stacked",
        TokenBlocks(folder / "tokens.npy", vocab_size=_VOCAB_SIZE, block_len=256),
        stack,
    )


def _compare_images(num_rows: int, rng: np.random.Generator, folder: Path) -> Iterator[_Comparison]:
    from PIL import Image

    paths = [f"{number}.png" for number in range(max(128, num_rows // 20))]
    for path in paths:
        pixels = rng.integers(0, 256, (_IMAGE_PIXELS, _IMAGE_PIXELS, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / path)
    with tarfile.open(folder / "images.tar", "w") as archive:
        for path in paths:
            archive.add(folder / path, path)
    pack(str(folder / "images.tar"), folder / "shards", environ={})

    def decode(rows: Tensor) -> ModelInput:
        images = []
        for row in rows.tolist():
            with Image.open(folder / paths[row]) as image:
                images.append(torch.from_numpy(np.array(image.convert("RGB"))))
        return torch.stack(images).permute(0, 3, 1, 2)

    for name, source in (
        ("ImageFolderRows", ImageFolderRows(folder, paths)),
        ("ImageShardRows", ImageShardRows(folder / "shards")),
    ):
        yield _Comparison(f"{name}, PNG of 48 x 48", "Pillow, stacked", source, decode)


def _compare_datasets(
    num_rows: int,
    rng: np.random.Generator,
    folder: Path,  # noqa: ARG001 - needs no files
) -> Iterator[_Comparison]:
    dataset = TensorDataset(torch.from_numpy(rng.normal(size=(num_rows, 16))))

    def collate(rows: Tensor) -> ModelInput:
        batch: list[Tensor] = default_collate([dataset[row] for row in rows.tolist()])
        return batch[0]

    yield _Comparison(
        "DatasetRows, TensorDataset",
        "torch's default_collate",
        DatasetRows(dataset, field=0),
        collate,
    )


def _compare_records(
    num_rows: int, rng: np.random.Generator, folder: Path
) -> Iterator[_Comparison]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: rng.normal(size=num_rows) for name in "abcd"}
    pq.write_table(pa.table(columns), folder / "table.parquet")
    pack(str(folder / "table.parquet"), folder / "shards", environ={})
    table = pa.table(columns)

    def take(rows: Tensor) -> ModelInput:
        batch = table.take(pa.array(rows.numpy()))
        columns = [torch.from_numpy(np.array(column, np.float32)) for column in batch.columns]
        return torch.stack(columns, dim=1)

    yield _Comparison(
        "ShardRows, 4 numbers", "take of an Arrow table", ShardRows(folder / "shards"), take
    )


def make_documents(num_documents: int, rng: np.random.Generator) -> list[Any]:
    """Return random token ids of documents whose lengths are log-normal, as is typical of texts.

    The median length is 32 tokens. Lengths are clipped to 4 to 1,024 tokens, and the first document
    has 1,024 tokens.
    """
    lengths = np.exp(rng.normal(np.log(32), 0.9, num_documents)).astype(np.int64).clip(4, 1_024)
    lengths[0] = 1_024
    return [rng.integers(1, _VOCAB_SIZE, length) for length in lengths]


def measure_feistel(*, num_rows: int, seed: int, repeats: int) -> float:
    """Return the speed of ``FeistelOrder``, which shuffles without an index array [rows/s].

    The fastest of ``repeats`` short runs is reported, because other programs delay it least.
    """
    order, run_rows = FeistelOrder(num_rows, seed=seed), 2**16
    starts = [random.Random(seed + n).randrange(num_rows - run_rows) for n in range(repeats)]
    seconds = []
    for start in starts:
        run_start_s = time.perf_counter()
        order.part(start, start + run_rows)
        seconds.append(time.perf_counter() - run_start_s)
    return run_rows / min(seconds)
