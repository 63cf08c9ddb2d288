"""Speed of a training on documents for three kinds of padding."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.settings import Record
from sluice.bench.rows.row_sources import make_documents
from sluice.data.rows import TokenRows, write_tokens
from sluice.training.row_order import BatchPlan, require_lengths

_BATCH_ROWS = 32
_MAX_LEN = 1_024
_VOCAB_SIZE = 5_000


class PaddingSpeed(Record):
    """Speed of a training for each kind of padding. Padding tokens are not counted."""

    max_len_tokens_per_s: float = Field(
        description="Speed with documents padded to 1,024 tokens, in the fastest epoch [tokens/s]."
    )
    longest_tokens_per_s: float = Field(
        description="Speed with documents padded to the longest document of the batch, in the "
        "fastest epoch [tokens/s]."
    )
    bucketed_tokens_per_s: float = Field(
        description="Speed if the documents of a batch have similar lengths and are padded to the "
        "longest document of the batch, in the fastest epoch [tokens/s]."
    )
    longest_ratio: float = Field(
        description="``longest_tokens_per_s`` divided by ``max_len_tokens_per_s``."
    )
    bucketed_ratio: float = Field(
        description="``bucketed_tokens_per_s`` divided by ``max_len_tokens_per_s``."
    )


def measure_padding(*, num_batches: int, num_rounds: int, seed: int, folder: Path) -> PaddingSpeed:
    """Train a small network on the same documents with three kinds of padding in turns.

    Args:
        num_batches: Number of batches of 32 documents in an epoch.
        num_rounds: Number of timed epochs for each kind of padding.
        seed: Seed of the documents and their order.
        folder: Folder for the file of tokens.
    """
    documents = make_documents(num_batches * _BATCH_ROWS, np.random.default_rng(seed))
    write_tokens(folder / "tokens", documents, vocab_size=_VOCAB_SIZE)
    num_tokens = sum(map(len, documents))
    padded_to_longest = TokenRows(folder / "tokens", vocab_size=_VOCAB_SIZE, max_len=_MAX_LEN)
    padded_to_max = TokenRows(
        folder / "tokens", vocab_size=_VOCAB_SIZE, max_len=_MAX_LEN, pad_to="max_len"
    )
    num_rows, lengths_of = len(documents), require_lengths(padded_to_longest)
    shuffled_plan = BatchPlan(num_rows, batch_rows=_BATCH_ROWS, seed=seed)
    bucketed_plan = BatchPlan(num_rows, batch_rows=_BATCH_ROWS, seed=seed, lengths_of=lengths_of)
    shuffled_batches = list(shuffled_plan.batches(1))
    bucketed_batches = list(bucketed_plan.batches(1))
    train_step = _make_training_step(seed)
    variants = {
        "max_len": (padded_to_max, shuffled_batches),
        "longest": (padded_to_longest, shuffled_batches),
        "bucketed": (padded_to_longest, bucketed_batches),
    }
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(num_rounds + 1):
        for name, (source, batches) in variants.items():
            start_s = time.perf_counter()
            for rows in batches:
                batch = source[rows]
                train_step(batch["ids"], batch["mask"])
            if round_number:  # the first round only fills the caches
                speeds[name].append(num_tokens / (time.perf_counter() - start_s))
    best_speeds = {name: max(round_speeds) for name, round_speeds in speeds.items()}
    return PaddingSpeed(
        max_len_tokens_per_s=best_speeds["max_len"],
        longest_tokens_per_s=best_speeds["longest"],
        bucketed_tokens_per_s=best_speeds["bucketed"],
        longest_ratio=best_speeds["longest"] / best_speeds["max_len"],
        bucketed_ratio=best_speeds["bucketed"] / best_speeds["max_len"],
    )


def _make_training_step(seed: int) -> Callable[[Tensor, Tensor], None]:
    """Return a function that trains a small classifier on a batch, padding tokens included."""
    torch.manual_seed(seed)
    network = nn.ModuleList([nn.Embedding(_VOCAB_SIZE, 32), nn.Linear(32, 64), nn.Linear(64, 2)])
    embedding, hidden, head = network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def train_step(ids: Tensor, mask: Tensor) -> None:
        x = hidden(embedding(ids)).relu() * mask[..., None]
        output = head(x.sum(1) / mask.sum(1, keepdim=True))
        loss = nn.functional.cross_entropy(output, ids[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train_step
