"""Codec of token ids, for networks that read blocks of tokens, such as language models.

Shape legend: B = sequences of a request, L = tokens of a sequence.
"""

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sluice.base.errors import ContractError, PayloadError
from sluice.base.pluralize import pluralize
from sluice.workloads.codecs.codec import Codec, to_json_text
from sluice.workloads.codecs.request import CodecRequest

_MAX_LISTED_TOKENS = 2**20
"""Maximum length of a sequence, even if ``max_len`` is larger. Validation refuses a longer list
before it converts the ids."""

TokenIds = Annotated[list[int], Field(min_length=1, max_length=_MAX_LISTED_TOKENS, fail_fast=True)]


class TokensRequest(CodecRequest):
    """Body of a request with token ids."""

    elements_field: ClassVar[str] = "sequences"

    sequences: Annotated[
        list[TokenIds],
        Field(
            min_length=1,
            max_length=100_000,
            fail_fast=True,
            description="One list of token ids for each prediction, all of one length.",
        ),
    ]


class TokensCodec(Codec):
    """Codec of token ids. All sequences of a request have the same length, without padding.

    Args:
        vocab_size: Number of token ids.
        max_len: Maximum length of a sequence, the same as in the training [tokens].
        min_len: Minimum length of a sequence [tokens].
        max_elements: Maximum number of sequences of a request. The server does not compute larger
            batches.

    Raises:
        ContractError: A setting is less than 1, or ``min_len`` exceeds ``max_len``.
    """

    kind: ClassVar[str] = "tokens"
    request_type: ClassVar[type[CodecRequest]] = TokensRequest

    def __init__(
        self, *, vocab_size: int, max_len: int, min_len: int = 1, max_elements: int = 64
    ) -> None:
        if vocab_size < 1 or max_elements < 1 or not 1 <= min_len <= max_len:
            raise ContractError(
                "vocab_size, min_len and max_elements must be at least 1, and max_len at least "
                f"min_len, got {vocab_size}, {min_len}, {max_elements} and {max_len}.",
                fix="Correct the argument of TokensCodec.",
            )
        self._vocab_size, self._min_len, self._max_len = vocab_size, min_len, max_len
        self.max_elements = max_elements

    def decode_request(self, request: TokensRequest) -> Tensor:
        """Return the token ids, int64 (B, L).

        Raises:
            PayloadError: A sequence is too short or too long, or of another length than the
                first; or a token id is outside the vocabulary.
        """
        length = len(request.sequences[0])
        for number, ids in enumerate(request.sequences):
            if not self._min_len <= len(ids) <= self._max_len:
                raise PayloadError(
                    f"sequences.{number} must have {self._min_len} to {self._max_len} tokens, got "
                    f"{len(ids)}.",
                    fix="Send only the last tokens of the text."
                    if len(ids) > self._max_len
                    else "Leave the sequence out.",
                )
            if len(ids) != length:
                raise PayloadError(
                    "All sequences of a request must have one length, got "
                    f"{pluralize(length, 'token')} in sequences.0 and {len(ids)} in "
                    f"sequences.{number}.",
                    cause="Padding would change the predictions.",
                    fix="Send one request for each length.",
                )
            invalid_id = next((token for token in ids if not 0 <= token < self._vocab_size), None)
            if invalid_id is not None:
                raise PayloadError(
                    f"sequences.{number} must have token ids from 0 to {self._vocab_size - 1}, got "
                    f"{invalid_id}.",
                    fix="Use the tokenizer of the training.",
                )
        return torch.tensor(request.sequences, dtype=torch.int64)

    def identity_parts(self) -> dict[str, str]:
        """Return the size of the vocabulary and the lengths."""
        settings = {
            "vocab_size": self._vocab_size,
            "min_len": self._min_len,
            "max_len": self._max_len,
        }
        return {name: to_json_text(value) for name, value in settings.items()}

    def example(self) -> Tensor:
        """Return the token 0, repeated to the maximum length."""
        return torch.zeros(1, self._max_len, dtype=torch.int64)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema with the bounds of lengths and ids."""
        schema = super().schema()
        ids = schema["properties"]["sequences"]["items"]
        ids |= {"minItems": self._min_len, "maxItems": self._max_len}
        ids["items"] |= {"minimum": 0, "maximum": self._vocab_size - 1}
        return schema
