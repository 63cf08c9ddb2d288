"""Base class of workloads that train a language model on a file of tokens.

Shape legend: N = blocks of a split, B = blocks of a chunk, L = tokens of a block, V = vocabulary.
"""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from sluice.data.folds import Fold, FoldSettings, RowRange
from sluice.data.rows import SubsetRows, TokenBlocks
from sluice.data.rows.content import iter_chunks, row_digests
from sluice.data.rows.protocol import ModelInput, RowSource, gather_tensor
from sluice.data.schema import Column, Schema
from sluice.models.settings import ModelSettings
from sluice.workloads.codecs import Codec, TokensCodec
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

_SCHEMA = Schema(
    columns=(
        Column(name="content", kind="string", description="Digest of the tokens."),
        Column(
            name="distinct",
            unit="share",
            constant=True,  # long blocks of a small vocabulary contain every token
            description="Number of distinct tokens, as a share of the block.",
        ),
        Column(name="last_target", kind="int", description="Token after the block."),
    ),
    index_name="block",
    index_kind="int",
)

_MAX_BIGRAM_TOKENS = 4096
"""Maximum size of a vocabulary whose bigram baseline uses a table of all pairs of tokens (64 MiB).
"""

_MAX_SERVED_LOGITS = 2**24
"""Maximum number of logits that one network computes at once for requests (64 MiB). A single block
may have more."""

_MAX_SERVED_BLOCKS = 64
"""Maximum number of blocks of a request."""


class LanguageModelSettings(WorkloadSettings):
    """Settings of the blocks."""

    folds: FoldSettings = FoldSettings(num_folds=1, first_test_share=0.8, embargo_rows=1)
    block_len: int = Field(32, ge=2, description="Length of a block [tokens].")


class LanguageModelWorkload(Workload):
    """Predicts every next token of a text that is packed into blocks without padding.

    An example is a block; its loss is the mean over its tokens [nats per token]. The logits of a
    split are never in memory together. The baseline knows the previous token only. A subclass
    implements ``tokens_path`` and ``vocab_size``.

    A client sends token ids and receives their score: the mean log loss of all tokens but the
    first, given the tokens before them. Override ``served_output`` and ``served_losses`` to return
    something else, such as the logits of the next token.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = LanguageModelSettings
    settings: LanguageModelSettings
    raw_schema = _SCHEMA
    feature_schema = _SCHEMA
    feature_columns = ("distinct",)
    target_column = "last_target"
    loss_unit = "nats per token"
    headline_metric = "perplexity"
    scale_inputs = False
    scale_target = False
    keep_outputs = False
    causal = True
    """Outputs must not depend on later tokens; see ``sluice trace probe``."""

    @property
    @abstractmethod
    def tokens_path(self) -> Path:
        """Folder written by ``write_tokens``, or another file of tokens; see ``TokenBlocks``."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """V, the number of token ids."""

    def load_rows(self) -> pd.DataFrame:
        """Return one row for each block, in the order of the text."""
        inputs = self._blocks(offset=0)
        digests, distinct_shares = [], []
        for ids in iter_chunks(inputs):
            assert isinstance(ids, Tensor)
            digests += row_digests(ids)
            sorted_ids = ids.sort(dim=1).values
            distinct_shares.append(
                ((sorted_ids[:, 1:] != sorted_ids[:, :-1]).sum(1) + 1) / ids.shape[1]
            )
        last_targets = []
        for targets in iter_chunks(self._blocks(offset=1)):
            assert isinstance(targets, Tensor)
            # A view would keep the whole chunk in memory.
            last_targets.append(targets[:, -1].clone())
        return pd.DataFrame(
            {
                "content": digests,
                "distinct": torch.cat(distinct_shares).double().numpy(),
                "last_target": torch.cat(last_targets).numpy(),
            },
            index=pd.RangeIndex(len(inputs), name="block"),
        )

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the rows unchanged."""
        return raw

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return blocks of token ids (N, L), and for each token the next token (N, L)."""
        blocks = frame.index[rows.start : rows.stop].to_numpy(np.int64)
        return Examples(
            x=SubsetRows(self._blocks(offset=0), blocks),
            y=SubsetRows(self._blocks(offset=1), blocks),
            rows=np.arange(rows.start, rows.stop),
        )

    def build_model(
        self,
        num_features: int,  # noqa: ARG002 - replaced by the size of the vocabulary
        num_outputs: int,  # noqa: ARG002 - replaced by the size of the vocabulary
        settings: ModelSettings,
    ) -> nn.Module:
        """Return a network from ids (B, L) to logits (B, L, V)."""
        return super().build_model(self.vocab_size, self.vocab_size, settings)

    def output_shape(self, y: Tensor) -> tuple[int, ...]:
        """Return the shape of the logits of every token."""
        return (*y.shape, self.vocab_size)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean log loss of the tokens of each block (B,)."""
        losses = nn.functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(dim=1)

    def codec(self) -> Codec:
        """Return the codec of token ids, which accepts lists of at most ``block_len`` ids."""
        length = self.settings.block_len
        num_blocks = _MAX_SERVED_LOGITS // (length * self.vocab_size)
        is_scored = type(self).served_output is LanguageModelWorkload.served_output
        return TokensCodec(
            vocab_size=self.vocab_size,
            min_len=2 if is_scored else 1,
            max_len=length,
            max_elements=min(max(num_blocks, 1), _MAX_SERVED_BLOCKS),
        )

    def request_of(
        self,
        raw: pd.DataFrame,  # noqa: ARG002 - the blocks are in a file
        frame: pd.DataFrame,
        positions: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Return a request with the tokens of the given blocks."""
        blocks = torch.tensor(frame.index[positions].to_numpy(np.int64))
        return {"sequences": self._blocks(offset=0)[blocks].tolist()}

    def served_output(self, output: Tensor, x: ModelInput) -> Tensor:
        """Return the mean log loss of all tokens but the first (B, 1) [nats per token]."""
        assert isinstance(x, Tensor)
        return self.losses(output[:, :-1], x[:, 1:]).unsqueeze(1)

    def served_losses(
        self,
        served: Tensor,
        y: Tensor,  # noqa: ARG002 - the scores are losses already
    ) -> Tensor:
        """Return the scores as losses (B,) [nats per token]."""
        return served[:, 0]

    def metrics_from_losses(
        self, losses: Tensor, examples: Examples, frame: pd.DataFrame
    ) -> Mapping[str, float]:
        """Return the mean loss [nats per token] and the perplexity, its exponential."""
        metrics = super().metrics_from_losses(losses, examples, frame)
        return {**metrics, "perplexity": float(np.exp(metrics["loss"]))}

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> RowSource:
        """Return the log probabilities of a bigram model, which is fitted on the train rows."""
        train = self.examples(frame, fold.train)
        test = self.examples(frame, fold.test)
        return BigramRows(test.x, bigram_log_probs(train, self.vocab_size))

    def _blocks(self, *, offset: Literal[0, 1]) -> TokenBlocks:
        return TokenBlocks(
            self.tokens_path,
            vocab_size=self.vocab_size,
            block_len=self.settings.block_len,
            offset=offset,
        )


class BigramRows:
    """Outputs of a bigram model as a row source.

    Args:
        ids: Blocks of token ids (N, L).
        log_probs: Result of ``bigram_log_probs``.
    """

    def __init__(self, ids: RowSource | Tensor, log_probs: Tensor) -> None:
        self._ids, self._log_probs = ids, log_probs

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        ids = gather_tensor(self._ids, rows, what="inputs")
        if len(self._log_probs) == 1:
            return self._log_probs[0].expand(*ids.shape, -1)
        return self._log_probs[ids]


def bigram_log_probs(train: Examples, vocab_size: int) -> Tensor:
    """Return log probabilities as float32 (V, V): row = previous token, column = next token.

    To the counts of each row, five pseudo-counts are added. They are distributed over the columns
    by the unigram probabilities, which have add-one smoothing. For more than 4,096 tokens only the
    unigram log probabilities are returned, (1, V).
    """
    has_pair_table = vocab_size <= _MAX_BIGRAM_TOKENS
    counts = torch.zeros(vocab_size if has_pair_table else 1, vocab_size, dtype=torch.float64)
    for ids, targets in zip(iter_chunks(train.x), iter_chunks(train.y), strict=True):
        assert isinstance(ids, Tensor)
        assert isinstance(targets, Tensor)
        previous_ids = ids.flatten() if has_pair_table else torch.zeros_like(ids.flatten())
        pair_codes = previous_ids * vocab_size + targets.flatten()
        counts += torch.bincount(pair_codes, minlength=counts.numel()).reshape(counts.shape)
    count_V = counts.sum(dim=0) + 1
    unigram_V = count_V / count_V.sum()
    smoothed = (counts + 5 * unigram_V) if has_pair_table else unigram_V[None]
    return (smoothed / smoothed.sum(dim=1, keepdim=True)).log().float()
