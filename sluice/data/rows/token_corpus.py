"""Token ids of many documents in a file that can be memory-mapped."""

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.base.errors import ContractError, SourceError
from sluice.base.files import make_folder, storage_error
from sluice.data.rows.npy_file import MappedArray, NpyWriter

TOKENS_NAME = "tokens.npy"
"""Name of the file with the token ids of all documents, one after another."""

OFFSETS_NAME = "offsets.npy"
"""Name of the file with the position of each document's first token."""

ABOUT_NAME = "about.json"
"""Name of the file with the size of the vocabulary."""

_CHUNK_TOKENS = 2**22
"""Number of token ids that are checked at once."""

_BUFFER_TOKENS = 2**16
"""Number of token ids that are collected before they are written."""


def write_tokens(path: Path | str, documents: Iterable[Sequence[int]], *, vocab_size: int) -> int:
    """Write the token ids of documents to a new folder, and return the number of documents.

    The documents are written as they arrive, with only a few of them in memory. The folder is
    renamed to its final name when it is complete, so an interrupted process leaves no folder of
    that name.

    Args:
        path: New folder with ``tokens.npy`` (uint16 if the vocabulary has at most 65,536 ids, else
            uint32) and ``offsets.npy`` (int64, one entry more than documents).
        documents: Token ids of each document, lists or arrays.
        vocab_size: Number of token ids; every id is below it.

    Raises:
        ContractError: The folder exists, a document is empty or has an id outside of the
            vocabulary, or there is no document.
        StorageError: The folder cannot be written.
    """
    path = Path(path)
    if path.exists():
        raise ContractError(
            f"{path} exists already.", fix="Remove it, or write the tokens to another folder."
        )
    if not 1 <= vocab_size <= 2**32:
        raise ContractError(
            f"'vocab_size' must be from 1 to 2^32, got {vocab_size}.",
            fix="Pass the number of entries of the tokenizer's vocabulary.",
        )
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        make_folder(temporary)
        num_documents = _write(temporary, documents, vocab_size)
        os.rename(temporary, path)
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return num_documents


def _write(folder: Path, documents: Iterable[Sequence[int]], vocab_size: int) -> int:
    dtype = np.uint16 if vocab_size <= 2**16 else np.uint32
    with (
        open(folder / TOKENS_NAME, "xb") as token_file,
        open(folder / OFFSETS_NAME, "xb") as offset_file,
    ):
        tokens, offsets = NpyWriter(token_file, dtype), NpyWriter(offset_file, np.int64)
        offsets.append(np.zeros(1, np.int64))
        buffered_ids: list[NDArray[Any]] = []
        document_ends: list[int] = []
        num_tokens = num_buffered_tokens = 0
        for row, document in enumerate(documents):
            ids = _check_document(document, row, vocab_size)
            num_tokens += len(ids)
            num_buffered_tokens += len(ids)
            buffered_ids.append(ids.astype(dtype))
            document_ends.append(num_tokens)
            if num_buffered_tokens >= _BUFFER_TOKENS:
                tokens.append(np.concatenate(buffered_ids))
                offsets.append(np.array(document_ends, np.int64))
                buffered_ids, document_ends, num_buffered_tokens = [], [], 0
        if buffered_ids:
            tokens.append(np.concatenate(buffered_ids))
            offsets.append(np.array(document_ends, np.int64))
        if not num_tokens:
            raise ContractError(
                "A file of tokens needs at least one document, got none.",
                fix="Check the iterable of documents: a generator can be read once only.",
            )
        for writer, file in ((tokens, token_file), (offsets, offset_file)):
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
    (folder / ABOUT_NAME).write_text(json.dumps({"vocab_size": vocab_size}))
    return offsets.num_rows - 1


def _check_document(document: Sequence[int], row: int, vocab_size: int) -> NDArray[np.int64]:
    ids = np.asarray(document)
    if ids.size == 0:
        raise _empty_document_error(row)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ContractError(
            f"Document {row} must be a list of integer token ids, got {ids.dtype} {ids.shape}.",
            fix="Pass the ids that the tokenizer returns, one list per document.",
        )
    invalid_positions = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if invalid_positions.size:
        position = int(invalid_positions[0])
        location = f"document {row}, position {position}"
        raise outside_vocabulary_error(int(ids[position]), vocab_size, location)
    return ids


class TokenCorpus:
    """Token ids of documents, memory-mapped.

    Args:
        path: Folder written by ``write_tokens``, or a file of token ids: ``.npy``, or numbers
            without a header with ``dtype``.
        offsets: ``.npy`` file with the position of each document's first token and, at the end,
            the number of tokens; None if the file has no documents. Ignored for a folder.
        dtype: Type of the ids in a file without a header, such as uint16.
        vocab_size: Number of token ids of the network's embedding.

    Raises:
        SourceError: A file is missing, or is not an array.
        ContractError: An id is outside of the vocabulary, a document is empty, or the offsets do
            not fit the tokens.

    Cost:
        One pass over the tokens, about 0.5 s per GB in the disk cache. The pass is omitted for a
        folder of ``write_tokens``, which checked the ids, unless ``vocab_size`` is smaller now.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        vocab_size: int,
        offsets: Path | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.path, self.vocab_size = Path(path), vocab_size
        is_folder = self.path.is_dir()
        if is_folder:
            tokens, offsets = self.path / TOKENS_NAME, self.path / OFFSETS_NAME
        else:
            tokens = self.path
        self._tokens = MappedArray(tokens, dtype=dtype)
        if len(self._tokens.shape) != 1 or self._tokens.dtype.kind not in "iu":
            raise ContractError(
                f"{tokens} must contain integer token ids (N,), got {self._tokens.dtype} "
                f"{self._tokens.shape}.",
                fix="Write it with write_tokens.",
            )
        self._offsets = None if offsets is None else MappedArray(Path(offsets))
        if self._offsets is not None:
            _check_offsets(self._offsets.array, len(self._tokens), Path(str(offsets)))
        if not (is_folder and _stored_vocab_size(self.path) <= vocab_size):
            self._check_all_ids()

    @property
    def num_tokens(self) -> int:
        """Number of token ids of all documents."""
        return len(self._tokens)

    @property
    def num_documents(self) -> int:
        """Number of documents; 0 for a file without offsets."""
        return 0 if self._offsets is None else len(self._offsets) - 1

    @property
    def tokens(self) -> NDArray[Any]:
        """Ids of all tokens, memory-mapped."""
        return self._tokens.array

    @property
    def offsets(self) -> NDArray[Any]:
        """Position of each document's first token, and the number of tokens, memory-mapped."""
        if self._offsets is None:
            raise ContractError(
                f"{self.path} has no documents, because it has no offsets.",
                fix="Pass offsets='offsets.npy', write the file with write_tokens, or use "
                "TokenBlocks, which needs no documents.",
            )
        return self._offsets.array

    def is_inside(self, ids: NDArray[Any]) -> bool:
        """Return whether all ids are in the vocabulary."""
        return not ids.size or 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size

    def check_ids(self, ids: NDArray[Any], positions: NDArray[np.int64]) -> None:
        """Raise an error for an id outside of the vocabulary.

        Args:
            ids: Ids that were read.
            positions: Their positions in the file, of the same shape.

        Raises:
            ContractError: The message names the document and the position in it.
        """
        if not self.is_inside(ids):
            index = int(((ids < 0) | (ids >= self.vocab_size)).argmax())
            location = self._location(int(positions.reshape(-1)[index]))
            raise outside_vocabulary_error(int(ids.reshape(-1)[index]), self.vocab_size, location)

    def _check_all_ids(self) -> None:
        for start in range(0, self.num_tokens, _CHUNK_TOKENS):
            ids = self.tokens[start : start + _CHUNK_TOKENS]
            if not self.is_inside(ids):
                self.check_ids(ids, np.arange(start, start + len(ids)))

    def _location(self, position: int) -> str:
        if self._offsets is None:
            return f"position {position} of {self.path}"
        document = int(np.searchsorted(self.offsets, position, side="right")) - 1
        return f"document {document}, position {position - self.offsets[document]} of {self.path}"


def outside_vocabulary_error(token_id: int, vocab_size: int, location: str) -> ContractError:
    """Return the error for a token id that the embedding has no row for."""
    return ContractError(
        f"Token ids must be from 0 to {vocab_size - 1} (vocab_size = {vocab_size}), got {token_id} "
        f"at {location}.",
        cause="The text was tokenized with another vocabulary, or tokens were added to it.",
        fix="Tokenize the text again, or set vocab_size to the size of the tokenizer's vocabulary.",
    )


def _check_offsets(offsets: NDArray[Any], num_tokens: int, path: Path) -> None:
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise ContractError(
            f"{path} must contain int64 (documents + 1,), got {offsets.dtype} {offsets.shape}.",
            fix="Write the tokens with write_tokens.",
        )
    if (int(offsets[0]), int(offsets[-1])) != (0, num_tokens):
        raise ContractError(
            f"The offsets in {path} must begin with 0 and end with the number of tokens, "
            f"{num_tokens}, got {offsets[0]} and {offsets[-1]}.",
            cause="The offsets belong to another file, or one of the files is incomplete.",
            fix="Write both again with write_tokens.",
        )
    for start in range(0, len(offsets) - 1, _CHUNK_TOKENS):
        lengths = np.diff(offsets[start : start + _CHUNK_TOKENS + 1].astype(np.int64))
        invalid_rows = np.flatnonzero(lengths <= 0)
        if invalid_rows.size:
            row = start + int(invalid_rows[0])
            raise (
                _empty_document_error(row)
                if lengths[invalid_rows[0]] == 0
                else ContractError(
                    f"The offsets in {path} must increase, but decrease after document {row}.",
                    fix="Write the tokens again with write_tokens.",
                )
            )


def _empty_document_error(row: int) -> ContractError:
    return ContractError(
        f"Every document must have at least one token, but document {row} has no token.",
        cause="The text is empty, or consists of characters that the tokenizer drops.",
        fix="Leave the document out of the tokens and of the index, or add a token for the end "
        "of every text.",
    )


def _stored_vocab_size(folder: Path) -> float:
    """Return the size of the vocabulary that the tokens were checked for; infinity if unknown."""
    try:
        return float(json.loads((folder / ABOUT_NAME).read_text())["vocab_size"])
    except FileNotFoundError:
        return float("inf")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{folder / ABOUT_NAME} cannot be read: {error!r}.",
            fix="Write the tokens again with write_tokens.",
        ) from None
