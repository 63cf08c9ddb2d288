"""Peak memory of trainings that read their examples from files, compared with a limit.

Run it as ``python -m sluice.bench.rows.training_memory [--quick]``. It writes about 1.2 GB to the
folder for temporary files.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.memory import proportional_bytes
from sluice.base.settings import Record
from sluice.data.folds import FoldSettings
from sluice.data.generated.shapes import SHAPES, write_shapes
from sluice.data.rows.npy_file import NpyWriter
from sluice.models.settings import ModelSettings
from sluice.training.loop import train
from sluice.training.prediction import row_losses
from sluice.training.settings import TrainSettings
from sluice.workloads.image_folder import ImageFolderSettings, ImageFolderWorkload
from sluice.workloads.language_model import LanguageModelSettings, LanguageModelWorkload
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

LIMIT_MIB = 2048
"""Limit with which the peak memory is compared [MiB]."""

_VOCAB_SIZE = 16
_BLOCK_LEN = 4096
_LOADER_WORKERS = 2
_CHUNK_TOKENS = 2**22
_SAMPLE_INTERVAL_S = 0.1
_MIB = 2.0**20


class TrainingMemory(Record):
    """Peak memory of one training, with its loader processes."""

    data: str = Field(description="'images' or 'tokens'.")
    size_mib: float = Field(description="Size of the files [MiB].")
    num_examples: int = Field(description="Number of examples of all splits together.")
    peak_mib: float = Field(
        description="Peak memory of all processes together [MiB]. Shared memory is counted once. "
        "Mapped files are counted as far as they are in memory."
    )
    seconds: float = Field(
        description="Run time of the process: imports, loading the raw rows, one epoch, and the "
        "test losses [s]."
    )


class _TokenWorkload(LanguageModelWorkload):
    vocab_size = _VOCAB_SIZE

    def __init__(self, file: Path) -> None:
        super().__init__(LanguageModelSettings(block_len=_BLOCK_LEN))
        self._file = file

    @property
    def tokens_path(self) -> Path:
        return self._file


class _ShapeWorkload(ImageFolderWorkload):
    classes = SHAPES


class _BigramModel(torch.nn.Embedding):
    """Language model that uses only the previous token. It is cheap, so reading dominates."""

    def __init__(self, num_features: int, num_outputs: int, _: ModelSettings) -> None:
        super().__init__(num_features, num_outputs)


def measure_memory(*, quick: bool, folder: Path) -> Iterator[TrainingMemory]:
    """Yield the peak memory of a training on 20,000 images, and on 1 GB of tokens.

    Args:
        quick: Whether to use only a twentieth of the data.
        folder: Folder for the data.
    """
    divisor = 20 if quick else 1
    write_shapes(folder / "images", 20_000 // divisor, seed=0, side=48)
    settings = ImageFolderSettings(
        folder=str(folder / "images"), folds=FoldSettings(num_folds=1, embargo_rows=0)
    )
    cnn = ModelSettings(architecture="sluice.models.image_cnn:ImageCnn", hidden=8)
    yield _measure(
        "images", folder / "images", partial(_train, partial(_ShapeWorkload, settings), cnn)
    )
    file = folder / "tokens.npy"
    _write_tokens(file, 5 * 10**8 // divisor)
    bigram_model = ModelSettings(architecture=f"{__name__}:_BigramModel")
    yield _measure("tokens", file, partial(_train, partial(_TokenWorkload, file), bigram_model))


def _measure(name: str, path: Path, run: Callable[[], int]) -> TrainingMemory:
    # A spawned process does not inherit the memory of this process.
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_put_result, args=(run, queue))
    start_s, peak_bytes = time.perf_counter(), 0
    process.start()
    assert process.pid is not None
    while process.is_alive():
        peak_bytes = max(peak_bytes, proportional_bytes(process.pid))
        time.sleep(_SAMPLE_INTERVAL_S)
    if process.exitcode or queue.empty():
        raise ContractError(
            f"The training on {name} ended with exit code {process.exitcode}.",
            fix="Read its messages above, and correct the error.",
        )
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return TrainingMemory(
        data=name,
        size_mib=sum(file.stat().st_size for file in files) / _MIB,
        num_examples=queue.get(),
        peak_mib=peak_bytes / _MIB,
        seconds=time.perf_counter() - start_s,
    )


def _put_result(run: Callable[[], int], queue: "SimpleQueue[int]") -> None:
    queue.put(run())


def _train(build_workload: Callable[[], Workload], model: ModelSettings) -> int:
    """Train for one epoch, score the test rows, and return the number of examples."""
    torch.set_num_threads(1)
    workload = build_workload()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    train_examples, val_examples, test_examples = (
        workload.examples(frame, part) for part in (fold.train, fold.val, fold.test)
    )
    network = prepare_model(workload, model, train_examples, seed=0)
    settings = TrainSettings(max_epochs=1, batch_rows=16, loader_workers=_LOADER_WORKERS)
    for _ in train(
        network, workload.loss, workload.losses, train_examples, val_examples, settings, seed=0
    ):
        pass
    losses = row_losses(network, workload.losses, test_examples)
    if not bool(torch.isfinite(losses).all()):
        raise ContractError("A test loss is not finite.", fix="Report this as a bug of Sluice.")
    return len(frame)


def _write_tokens(file: Path, num_tokens: int) -> None:
    rng = np.random.default_rng(0)
    with open(file, "xb") as stream:
        writer = NpyWriter(stream, np.uint16)
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            chunk_tokens = min(_CHUNK_TOKENS, num_tokens - start)
            writer.append(rng.integers(0, _VOCAB_SIZE, chunk_tokens, dtype=np.uint16))
        writer.finish()


def main() -> None:
    """Print the peak memory of both trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for measurement in measure_memory(quick=arguments.quick, folder=Path(folder)):
            print(
                f"{measurement.data}: {measurement.num_examples:,} examples, "
                f"{measurement.size_mib:,.0f} MiB of files, peak {measurement.peak_mib:,.0f} MiB "
                f"(limit {LIMIT_MIB}), {measurement.seconds:.0f} s"
            )


if __name__ == "__main__":
    main()
