"""Texts as token ids, as the input of a network: padded documents, or blocks of one length."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.positions import check_positions
from sluice.data.rows.token_corpus import TokenCorpus
from sluice.data.rows.token_padding import pad_documents


class TokenRows:
    """Documents as token ids, padded to the longest of the chosen documents.

    Shape legend: B = chosen documents, L = length of the longest chosen document, or ``max_len``
    [tokens].

    Args:
        path: Folder written by ``write_tokens``; otherwise see ``TokenCorpus``.
        vocab_size: Number of token ids of the network's embedding.
        max_len: Longer documents are cut after this number of tokens; None keeps them whole.
        pad_id: Id at the positions after the end of a document.
        pad_to: ``longest`` pads to the longest of the chosen documents. ``max_len`` pads to
            ``max_len`` tokens, for networks that need one shape.
        names: Names of the ids, int64 (B, L), and of the mask, bool (B, L), which is True at the
            positions of the document: the parameters of ``forward()``.
        offsets: ``.npy`` file with the position of each document's first token and, at the end,
            the number of tokens. Ignored for a folder.
        dtype: Type of the ids in a file without a header, such as uint16.

    Raises:
        SourceError: A file is missing, or is not an array.
        ContractError: An id is outside of the vocabulary, a document is empty, or a setting is
            invalid.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        vocab_size: int,
        max_len: int | None = None,
        pad_id: int = 0,
        pad_to: Literal["longest", "max_len"] = "longest",
        names: tuple[str, str] = ("ids", "mask"),
        offsets: Path | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self._corpus = TokenCorpus(path, vocab_size=vocab_size, offsets=offsets, dtype=dtype)
        self._max_len, self._pad_id, self._names = max_len, pad_id, names
        if max_len is not None and max_len < 1:
            raise ContractError(
                f"'max_len' must be at least 1, got {max_len}.", fix="Raise max_len."
            )
        if not 0 <= pad_id < vocab_size:
            raise ContractError(
                f"'pad_id' must be a token id from 0 to {vocab_size - 1}, got {pad_id}.",
                cause="The embedding also reads the ids of padding, before the mask removes them.",
                fix="Use an id of the vocabulary; the mask marks the positions of padding.",
            )
        if pad_to not in ("longest", "max_len") or (pad_to == "max_len" and max_len is None):
            raise ContractError(
                f"'pad_to' must be 'longest', or 'max_len' with max_len set, got {pad_to!r} and "
                f"max_len={max_len}.",
                fix="Set max_len, or pass pad_to='longest'.",
            )
        self._fixed_len = max_len if pad_to == "max_len" else None
        self._num_documents = len(self._corpus.offsets) - 1

    def __len__(self) -> int:
        return self._num_documents

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of every document after cutting, int64 (N,)."""
        lengths = np.diff(self._corpus.offsets.astype(np.int64, copy=False))
        return torch.from_numpy(
            lengths if self._max_len is None else lengths.clip(max=self._max_len)
        )

    def lengths_of(self, rows: Tensor) -> Tensor:
        """Return the number of tokens of the chosen documents after cutting, int64 (B,)."""
        return torch.from_numpy(self._ranges(rows)[1])

    def _ranges(self, rows: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first position and the length of each chosen document, int64 (B,)."""
        positions = check_positions(rows, len(self))
        offsets = self._corpus.offsets
        starts = offsets[positions].astype(np.int64, copy=False)
        lengths = offsets[positions + 1].astype(np.int64, copy=False) - starts
        if self._max_len is not None:
            lengths = lengths.clip(max=self._max_len)
        return starts, lengths

    def __getitem__(self, rows: Tensor, /) -> dict[str, Tensor]:
        starts, lengths = self._ranges(rows)
        length = self._fixed_len or int(lengths.max(initial=0))
        tokens = self._corpus.tokens
        documents = (
            tokens[start : start + num_tokens]
            for start, num_tokens in zip(starts.tolist(), lengths.tolist(), strict=True)
        )
        ids, mask = pad_documents(documents, lengths, length=length, pad_id=self._pad_id)
        if not self._corpus.is_inside(ids):
            for row, start, num_tokens in zip(ids, starts, lengths, strict=True):
                self._corpus.check_ids(row[:num_tokens], np.arange(start, start + num_tokens))
        return {self._names[0]: torch.from_numpy(ids), self._names[1]: torch.from_numpy(mask)}


class TokenBlocks:
    """Consecutive blocks of token ids without padding, for language models.

    The documents of a file follow each other, so a block may contain the end of one document and
    the beginning of the next document. Therefore write an end-of-text token after every document.
    Inputs and targets are two sources with the offsets 0 and 1: the target of a token is the next
    token.

    Shape legend: B = chosen blocks, L = ``block_len``.

    Args:
        path: Folder written by ``write_tokens``, or a file of token ids; see ``TokenCorpus``.
        vocab_size: Number of token ids of the network's embedding.
        block_len: Length of a block [tokens].
        offset: 0 for the inputs, 1 for the targets. Both have the same number of blocks.
        last: ``drop`` omits the last tokens if they fill no block; ``pad`` fills the last block
            with ``pad_id``.
        pad_id: Id that fills the last block. For targets it is usually -100, which losses ignore.
        dtype: Type of the ids in a file without a header, such as uint16.

    Raises:
        SourceError: A file is missing, or is not an array.
        ContractError: An id is outside of the vocabulary, there is no block, or a setting is
            invalid.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        vocab_size: int,
        block_len: int,
        offset: Literal[0, 1] = 0,
        last: Literal["drop", "pad"] = "drop",
        pad_id: int = 0,
        dtype: DTypeLike | None = None,
    ) -> None:
        self._corpus = TokenCorpus(path, vocab_size=vocab_size, dtype=dtype)
        self._block_len, self._offset, self._pad_id = block_len, offset, pad_id
        if block_len < 1 or offset not in (0, 1) or last not in ("drop", "pad"):
            raise ContractError(
                f"Blocks need block_len from 1, offset 0 or 1, and last 'drop' or 'pad', got "
                f"{block_len}, {offset} and {last!r}.",
                fix="Correct these arguments.",
            )
        # The last token is a target only.
        num_inputs = self._corpus.num_tokens - 1
        self._num_blocks = (
            num_inputs // block_len if last == "drop" else -(-num_inputs // block_len)
        )
        if self._num_blocks < 1:
            raise ContractError(
                f"{path} must have at least {block_len + 1 if last == 'drop' else 2} tokens for "
                f"one block of {block_len} and its targets, got {self._corpus.num_tokens}.",
                fix="Shorten block_len, provide more text, or use last='pad'."
                if last == "drop"
                else "Provide more text.",
            )

    def __len__(self) -> int:
        return self._num_blocks

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        positions = check_positions(rows, len(self))
        block_starts = positions * self._block_len + self._offset
        token_positions = block_starts[:, None] + np.arange(self._block_len)
        end_position = self._corpus.num_tokens - 1 + self._offset
        ids = self._corpus.tokens[np.minimum(token_positions, end_position - 1)].astype(np.int64)
        self._corpus.check_ids(ids, token_positions)
        ids[token_positions >= end_position] = self._pad_id
        return torch.from_numpy(ids)
