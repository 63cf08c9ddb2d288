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
"""Memory limit of the benchmark [MiB]."""

_VOCAB_SIZE = 16
_BLOCK_LEN = 4096
_LOADER_WORKERS = 2
_CHUNK_TOKENS = 2**22
_SAMPLE_S = 0.1
_MIB = 2.0**20


class TrainingMemory(Record):
    """Peak memory of one training, with its loader processes."""

    data: str
    size_mib: float = Field(description="Size of the files [MiB].")
    examples: int = Field(description="Number of examples of all splits together.")
    peak_mib: float = Field(
        description="Peak memory of all processes together, with shared memory counted once "
        "[MiB]. It includes the parts of mapped files that are in memory."
    )
    seconds: float = Field(
        description="Time to load the raw rows, train one epoch and compute the test losses [s]."
    )


class _Tokens(LanguageModelWorkload):
    vocab_size = _VOCAB_SIZE

    def __init__(self, file: Path) -> None:
        super().__init__(LanguageModelSettings(block_len=_BLOCK_LEN))
        self._file = file

    @property
    def tokens_path(self) -> Path:
        return self._file


class _Shapes(ImageFolderWorkload):
    classes = SHAPES


class _Pairs(torch.nn.Embedding):
    """Language model of pairs of tokens: the cheapest one, so that reading dominates."""

    def __init__(self, num_features: int, num_outputs: int, _: ModelSettings) -> None:
        super().__init__(num_features, num_outputs)


def measure_memory(*, quick: bool, folder: Path) -> Iterator[TrainingMemory]:
    """Yield the peak memory of a training on 20,000 images, and on 1 GB of tokens.

    Args:
        quick: A twentieth of the data.
        folder: Folder for the data.
    """
    divisor = 20 if quick else 1
    write_shapes(folder / "images", 20_000 // divisor, seed=0, side=48)
    settings = ImageFolderSettings(
        folder=str(folder / "images"), folds=FoldSettings(num_folds=1, embargo_rows=0)
    )
    cnn = ModelSettings(architecture="sluice.models.image_cnn:ImageCnn", hidden=8)
    yield _measure("images", folder / "images", partial(_train, partial(_Shapes, settings), cnn))
    file = folder / "tokens.npy"
    _write_tokens(file, 5 * 10**8 // divisor)
    pairs = ModelSettings(architecture=f"{__name__}:_Pairs")
    yield _measure("tokens", file, partial(_train, partial(_Tokens, file), pairs))


def _measure(name: str, path: Path, run: Callable[[], int]) -> TrainingMemory:
    context = multiprocessing.get_context("spawn")  # without the memory of this process
    queue = context.SimpleQueue()
    process = context.Process(target=_report, args=(run, queue))
    began, peak = time.perf_counter(), 0
    process.start()
    assert process.pid is not None
    while process.is_alive():
        peak = max(peak, proportional_bytes(process.pid))
        time.sleep(_SAMPLE_S)
    if process.exitcode or queue.empty():
        raise ContractError(
            f"The training on {name} ended with exit code {process.exitcode}.",
            fix="Read its messages above.",
        )
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return TrainingMemory(
        data=name,
        size_mib=sum(file.stat().st_size for file in files) / _MIB,
        examples=queue.get(),
        peak_mib=peak / _MIB,
        seconds=time.perf_counter() - began,
    )


def _report(run: Callable[[], int], queue: "SimpleQueue[int]") -> None:
    queue.put(run())


def _train(build: Callable[[], Workload], model: ModelSettings) -> int:
    """Train for one epoch, score the test rows, and return the number of examples."""
    torch.set_num_threads(1)
    workload = build()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    rows = [workload.examples(frame, part) for part in (fold.train, fold.val, fold.test)]
    network = prepare_model(workload, model, rows[0], seed=0)
    settings = TrainSettings(max_epochs=1, batch_rows=16, loader_workers=_LOADER_WORKERS)
    for _ in train(network, workload.loss, workload.losses, rows[0], rows[1], settings, seed=0):
        pass
    losses = row_losses(network, workload.losses, rows[2])
    if not bool(torch.isfinite(losses).all()):
        raise ContractError("A test loss is not finite.", fix="Report this as a fault of Sluice.")
    return len(frame)


def _write_tokens(file: Path, num_tokens: int) -> None:
    rng = np.random.default_rng(0)
    with open(file, "xb") as stream:
        writer = NpyWriter(stream, np.uint16)
        for start in range(0, num_tokens, _CHUNK_TOKENS):
            count = min(_CHUNK_TOKENS, num_tokens - start)
            writer.append(rng.integers(0, _VOCAB_SIZE, count, dtype=np.uint16))
        writer.finish()


def main() -> None:
    """Print the peak memory of both trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        for measurement in measure_memory(quick=arguments.quick, folder=Path(name)):
            print(
                f"{measurement.data}: {measurement.examples:,} examples, "
                f"{measurement.size_mib:,.0f} MiB of files, peak {measurement.peak_mib:,.0f} MiB "
                f"(limit {LIMIT_MIB}), {measurement.seconds:.0f} s"
            )


if __name__ == "__main__":
    main()
