"""Codec of texts: tokenises and pads texts in the same way as those of the training rows.

Shape legend: B = texts, L = length of the longest text, or ``max_len`` [tokens].
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.digests import digest_bytes
from sluice.base.error_location import locate_error
from sluice.base.errors import ContractError, PayloadError, SourceError
from sluice.base.pluralize import pluralize
from sluice.data.rows.protocol import ModelInput
from sluice.data.rows.token_padding import pad_documents
from sluice.workloads.codecs.codec import Codec, to_json_text
from sluice.workloads.codecs.identity import CodecProbe
from sluice.workloads.codecs.probe_texts import SHORT_TEXTS
from sluice.workloads.codecs.request import CodecRequest

Tokenizer = Callable[[str], Any]
"""Function from a text to its token ids: a sequence of integers, or an object with ``ids``."""


class TextsRequest(CodecRequest):
    """Body of a request with texts."""

    elements_field: ClassVar[str] = "texts"

    texts: list[str] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="One text for each prediction.",
    )


class TextCodec(Codec):
    """Codec of texts, tokenised and padded as ``TokenRows`` pads the training rows.

    Args:
        tokenizer: Function from a text to its token ids. It must be the tokenizer of the training
            rows.
        vocab_size: Number of token ids of the network's embedding.
        files: Paths or contents of the files that determine the tokenizer, by name. A changed file
            is reported before a request is answered.
        max_len: Longer texts are cut after this number of tokens; None keeps them whole.
        pad_id: Token id at the positions after the end of a text.
        pad_to: ``longest`` pads to the longest text of a request. ``max_len`` pads to ``max_len``
            tokens, for networks that need one shape.
        names: Names of the ids, int64 (B, L), and of the mask, bool (B, L): the parameters of
            ``forward()``. None passes the ids alone, as one tensor.
        column: Column of the feature frame or the raw rows with the texts, from which a rehearsal
            builds its requests.
        watch: Function from a text to the values of the workload's feature columns, such as its
            length. The values are stored with sampled requests, to detect drift. None: no values
            are stored.
        probes: Texts whose token ids are compared between training and serving.
        max_chars: Maximum length of a text; longer texts are refused [characters].
        max_texts: Maximum number of texts of a request.
        max_tokens: Maximum number of positions B x L of a request, padding included.

    Raises:
        ContractError: A setting is invalid.
    """

    kind: ClassVar[str] = "text"
    request_type: ClassVar[type[CodecRequest]] = TextsRequest

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        files: Mapping[str, Path | bytes] | None = None,
        max_len: int | None = None,
        pad_id: int = 0,
        pad_to: Literal["longest", "max_len"] = "longest",
        names: tuple[str, str] | None = ("ids", "mask"),
        column: str = "text",
        watch: Callable[[str], Sequence[float]] | None = None,
        probes: Sequence[str] = SHORT_TEXTS,
        max_chars: int = 20_000,
        max_texts: int = 64,
        max_tokens: int = 2**16,
    ) -> None:
        if pad_to not in ("longest", "max_len") or (pad_to == "max_len" and max_len is None):
            raise ContractError(
                f"'pad_to' must be 'longest', or 'max_len' with max_len set, got {pad_to!r} and "
                f"max_len={max_len}.",
                fix="Set max_len, or pass pad_to='longest'.",
            )
        limits = {"max_chars": max_chars, "max_texts": max_texts, "max_tokens": max_tokens}
        limits |= {"vocab_size": vocab_size} | ({} if max_len is None else {"max_len": max_len})
        invalid_limit = next((name for name, value in limits.items() if value < 1), None)
        if invalid_limit is not None or not 0 <= pad_id < vocab_size:
            raise ContractError(
                f"'pad_id' must be from 0 to {vocab_size - 1}, got {pad_id}."
                if invalid_limit is None
                else f"'{invalid_limit}' must be at least 1, got {limits[invalid_limit]}.",
                fix="Correct the argument of TextCodec.",
            )
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._files = dict(files or {})
        self._max_len, self._pad_id, self._pad_to = max_len, pad_id, pad_to
        self._names, self._column, self._probes = names, column, tuple(probes)
        self._watch = watch
        self._max_chars, self._max_tokens = max_chars, max_tokens
        self.max_elements = max_texts

    def decode_request(self, request: TextsRequest) -> ModelInput:
        """Return the token ids and the mask, padded as ``pad_to`` says.

        Raises:
            PayloadError: A text is too long, has no token, or cannot be tokenised; or the request
                has too many tokens.
        """
        for number, text in enumerate(request.texts):
            if len(text) > self._max_chars:
                raise PayloadError(
                    f"texts.{number} must have at most {self._max_chars:,} characters, got "
                    f"{len(text):,}.",
                    fix="Shorten the text.",
                )
        documents = [
            self._token_ids(text, f"texts.{number}")[: self._max_len]
            for number, text in enumerate(request.texts)
        ]
        for number, document in enumerate(documents):
            if not document.size:
                raise PayloadError(
                    f"texts.{number} must have at least one token, got none.",
                    cause="The text is empty, or has only characters that the tokenizer drops.",
                    fix="Leave the text out.",
                )
        length = self._max_len if self._pad_to == "max_len" else None
        length = length or max(map(len, documents))
        if length * len(documents) > self._max_tokens:
            raise PayloadError(
                f"A request may have at most {self._max_tokens:,} tokens with padding, got "
                f"{pluralize(len(documents), 'text')} of up to {pluralize(length, 'token')}.",
                fix="Send several requests with texts of similar length.",
            )
        ids, mask = pad_documents(
            documents, np.array([len(d) for d in documents]), length=length, pad_id=self._pad_id
        )
        if self._names is None:
            return torch.from_numpy(ids)
        return {self._names[0]: torch.from_numpy(ids), self._names[1]: torch.from_numpy(mask)}

    def identity_parts(self) -> dict[str, str]:
        """Return the settings of padding, and the digests of the tokenizer's files."""
        settings = {
            "vocab_size": self._vocab_size,
            "max_len": self._max_len,
            "pad_id": self._pad_id,
            "pad_to": self._pad_to,
            "names": self._names,
        }
        return {name: to_json_text(value) for name, value in settings.items()} | {
            f"file {name}": _digest(name, content) for name, content in self._files.items()
        }

    def probes(self) -> tuple[CodecProbe, ...]:
        """Return the token ids of the probe texts, before padding.

        Raises:
            ContractError: The tokenizer fails on a probe text.
        """
        probes = []
        for text in self._probes:
            try:
                ids = self._token_ids(text, f"The probe text {text[:40]!r}")
            except PayloadError as error:
                location = "" if error.__cause__ is None else f" {locate_error(error.__cause__)}"
                raise ContractError(
                    f"{error.what.rstrip('.')}{location}.",
                    cause="The tokenizer must accept every text, because a client can send any.",
                    fix="Map unknown words to a separate token id.",
                ) from error
            probes.append(CodecProbe(element=text, result=tuple(ids.tolist())))
        return tuple(probes)

    def example(self) -> ModelInput:
        """Return one text of a few tokens."""
        length = self._max_len if self._pad_to == "max_len" and self._max_len else 4
        ids = torch.full((1, length), min(1, self._vocab_size - 1))
        if self._names is None:
            return ids
        return {self._names[0]: ids, self._names[1]: torch.ones(1, length, dtype=torch.bool)}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema with the maximum length of a text."""
        schema = super().schema()
        schema["properties"]["texts"]["items"]["maxLength"] = self._max_chars
        return schema

    def request_of(
        self, raw: pd.DataFrame, frame: pd.DataFrame, positions: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the texts of the given rows, from the column ``column``."""
        return {"texts": payload_column(raw, frame, positions, self._column, codec="TextCodec")}

    def watched_values(
        self,
        request: TextsRequest,
        x: ModelInput,  # noqa: ARG002 - the text is sufficient
    ) -> tuple[float, ...]:
        """Return what ``watch`` returns for the first text."""
        return () if self._watch is None else tuple(map(float, self._watch(request.texts[0])))

    def _token_ids(self, text: str, name: str) -> NDArray[np.int64]:
        try:
            tokens = self._tokenizer(text)
            ids = np.asarray(getattr(tokens, "ids", tokens))
        except Exception as error:  # the tokenizer is user code and may raise anything
            raise PayloadError(
                f"{name} cannot be tokenised: the tokenizer raised {type(error).__name__}.",
                fix="Send another text, or report the error to the owner of the model.",
            ) from error
        if ids.size == 0:
            return np.zeros(0, np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise PayloadError(
                f"{name} must become a list of integers, got {ids.dtype} of shape {ids.shape} from "
                "the tokenizer.",
                fix="Let the tokenizer return the ids of one text.",
            )
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size:
            invalid_id = ids[(ids < 0) | (ids >= self._vocab_size)][0]
            raise PayloadError(
                f"{name} must have token ids from 0 to {self._vocab_size - 1}, got {invalid_id} "
                "from the tokenizer.",
                fix="Set vocab_size of the codec to the size of the tokenizer's vocabulary.",
            )
        return ids.astype(np.int64)


def payload_column(
    raw: pd.DataFrame,
    frame: pd.DataFrame,
    positions: NDArray[np.int64],
    column: str,
    *,
    codec: str,
) -> list[str]:
    """Return the texts of a column for given rows of the frame.

    Args:
        raw: Raw rows, read if the frame does not have the column.
        frame: Feature frame, with the index labels of the raw rows.
        positions: Positions in the frame.
        column: Name of the column.
        codec: Class name of the codec, for the message.

    Raises:
        ContractError: Neither table has the column.
    """
    if column in frame.columns:
        return [str(value) for value in frame[column].iloc[positions]]
    if column in raw.columns:
        return [str(value) for value in raw[column].loc[frame.index[positions]]]
    raise ContractError(
        f"{codec} reads the payload of a row from the column '{column}', which neither the "
        "features nor the raw rows have.",
        fix="Pass column=... with the name of the column, or implement request_of(raw, frame, "
        "positions) of the workload.",
    )


def _digest(name: str, content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return digest_bytes(content)
    try:
        return digest_bytes(Path(content).read_bytes())
    except OSError as error:
        raise SourceError(
            f"The tokenizer file {name} cannot be read: {error.strerror or error}.",
            fix="Restore the file, or correct 'files' of TextCodec.",
        ) from None
