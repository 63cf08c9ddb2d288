"""Tokens per second of a training, by how the documents of a batch are padded."""

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
    """Speed of a training step for each kind of padding. Padding tokens are not counted."""

    max_len_tokens_per_s: float = Field(
        description="Speed with documents padded to 1,024 tokens, in the fastest epoch [tokens/s]."
    )
    longest_tokens_per_s: float = Field(
        description="Speed with documents padded to the longest one of the batch, in the fastest "
        "epoch [tokens/s]."
    )
    bucketed_tokens_per_s: float = Field(
        description="Speed with batches of documents of similar length, padded to the longest one "
        "of the batch, in the fastest epoch [tokens/s]."
    )
    longest_ratio: float = Field(
        description="``longest_tokens_per_s`` divided by ``max_len_tokens_per_s``."
    )
    bucketed_ratio: float = Field(
        description="``bucketed_tokens_per_s`` divided by ``max_len_tokens_per_s``."
    )


def measure_padding(*, num_batches: int, rounds: int, seed: int, folder: Path) -> PaddingSpeed:
    """Train a small network on the same documents with three kinds of padding in turns.

    Args:
        num_batches: Batches of 32 documents in an epoch.
        rounds: Number of timed epochs of each kind.
        seed: Seed of the documents and their order.
        folder: Folder for the tokens.
    """
    documents = make_documents(num_batches * _BATCH_ROWS, np.random.default_rng(seed))
    write_tokens(folder / "tokens", documents, vocab_size=_VOCAB_SIZE)
    num_tokens = sum(map(len, documents))
    longest = TokenRows(folder / "tokens", vocab_size=_VOCAB_SIZE, max_len=_MAX_LEN)
    fixed = TokenRows(folder / "tokens", vocab_size=_VOCAB_SIZE, max_len=_MAX_LEN, pad_to="max_len")
    num_rows, lengths_of = len(documents), require_lengths(longest)
    plan = BatchPlan(num_rows, batch_rows=_BATCH_ROWS, seed=seed)
    by_length = BatchPlan(num_rows, batch_rows=_BATCH_ROWS, seed=seed, lengths_of=lengths_of)
    batches, bucketed = list(plan.batches(1)), list(by_length.batches(1))
    step = _training_step(seed)
    kinds = {
        "max_len": (fixed, batches),
        "longest": (longest, batches),
        "bucketed": (longest, bucketed),
    }
    speeds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, (source, parts) in kinds.items():
            started = time.perf_counter()
            for rows in parts:
                batch = source[rows]
                step(batch["ids"], batch["mask"])
            if number:  # the first round fills the caches
                speeds[name].append(num_tokens / (time.perf_counter() - started))
    best = {name: max(measured) for name, measured in speeds.items()}
    return PaddingSpeed(
        max_len_tokens_per_s=best["max_len"],
        longest_tokens_per_s=best["longest"],
        bucketed_tokens_per_s=best["bucketed"],
        longest_ratio=best["longest"] / best["max_len"],
        bucketed_ratio=best["bucketed"] / best["max_len"],
    )


def _training_step(seed: int) -> Callable[[Tensor, Tensor], None]:
    """Return one step of a small classifier, whose work grows with the padded length."""
    torch.manual_seed(seed)
    network = nn.ModuleList([nn.Embedding(_VOCAB_SIZE, 32), nn.Linear(32, 64), nn.Linear(64, 2)])
    embedding, hidden, head = network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(ids: Tensor, mask: Tensor) -> None:
        x = hidden(embedding(ids)).relu() * mask[..., None]
        output = head(x.sum(1) / mask.sum(1, keepdim=True))
        loss = nn.functional.cross_entropy(output, ids[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
