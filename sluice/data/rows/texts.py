"""Texts that are tokenized when they are read, as the input of a network."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.positions import check_positions
from sluice.data.rows.token_padding import pad_documents

Encode = Callable[[str], Sequence[int]]
"""Function of a text that returns its token ids, such as the ``encode`` of a tokenizer."""


class TextRows:
    """Texts, tokenized when they are read and padded to the longest of the chosen texts.

    Use it for texts in memory, such as a column of the raw rows. For a large corpus, write the ids
    once with ``write_tokens`` and read them with ``TokenRows``.

    Args:
        texts: The texts.
        encode: Picklable function of a text that returns its ids; see ``Encode``.
        vocab_size: Number of token ids of the network's embedding.
        max_len: Longer texts are cut after this number of tokens; None keeps them whole.
        pad_id: Id at the positions after the end of a text.
        names: Names of the parameters of ``forward()`` that receive the ids, int64 (B, L), and the
            mask, bool (B, L). The mask is True at the positions of the text.

    Raises:
        ContractError: There is no text, or a text is not a string.
    """

    def __init__(
        self,
        texts: Sequence[str],
        encode: Encode,
        *,
        vocab_size: int,
        max_len: int | None = None,
        pad_id: int = 0,
        names: tuple[str, str] = ("ids", "mask"),
    ) -> None:
        self._texts = tuple(texts)
        invalid_row = next(
            (n for n, text in enumerate(self._texts) if not isinstance(text, str)), None
        )
        if invalid_row is not None or not self._texts:
            got = (
                "none"
                if invalid_row is None
                else f"{self._texts[invalid_row]!r} for row {invalid_row}"
            )
            raise ContractError(
                f"A source of texts needs at least one text, and only strings, got {got}.",
                fix="Drop rows without a text in compute_features.",
            )
        self._encode, self._vocab_size, self._max_len = encode, vocab_size, max_len
        self._pad_id, self._names = pad_id, names

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, rows: Tensor, /) -> dict[str, Tensor]:
        documents = [self._ids(row) for row in check_positions(rows, len(self))]
        ids, mask = pad_to_longest(documents, pad_id=self._pad_id)
        return {self._names[0]: ids, self._names[1]: mask}

    def lengths_of(self, rows: Tensor) -> Tensor:
        """Return the number of tokens of the chosen texts after cutting, int64 (B,)."""
        return torch.tensor([len(self._ids(row)) for row in check_positions(rows, len(self))])

    def _ids(self, row: np.int64) -> NDArray[np.int64]:
        text = self._texts[row]
        return check_ids(
            self._encode(text), vocab_size=self._vocab_size, what=f"text {row} ({_shorten(text)})"
        )[: self._max_len]


def pad_to_longest(documents: Sequence[NDArray[np.int64]], *, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids, int64 (B, L), and their mask, bool (B, L); L is the maximum length."""
    lengths = np.array([len(document) for document in documents], np.int64)
    longest = int(lengths.max(initial=0))
    ids, mask = pad_documents(documents, lengths, length=longest, pad_id=pad_id)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def check_ids(ids: Sequence[int], *, vocab_size: int, what: str) -> NDArray[np.int64]:
    """Return the ids of one text as an array.

    Raises:
        ContractError: There is no id, or an id is outside of the vocabulary.
    """
    token_ids = np.asarray(ids, np.int64)
    if not token_ids.size:
        raise ContractError(
            f"Every text must have at least one token, but {what} has no token.",
            cause="The text is empty, or consists of characters that the tokenizer drops.",
            fix="Drop the row in compute_features, or let the tokenizer add a token for the end "
            "of every text.",
        )
    if not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        position = int(((token_ids < 0) | (token_ids >= vocab_size)).argmax())
        raise ContractError(
            f"Token ids must be from 0 to {vocab_size - 1} (vocab_size = {vocab_size}), got "
            f"{token_ids[position]} at position {position} of {what}.",
            cause="The tokenizer has another vocabulary than the network's embedding.",
            fix="Set vocab_size to the size of the tokenizer's vocabulary.",
        )
    return token_ids


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
