"""Compares the tokenizers of training and serving."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.probes.result import ProbeResult
from sluice.workloads.codecs.probe_texts import LONG_TEXT, SHORT_TEXTS

NAME = "tokenizers"

PROBE_TEXTS = (*SHORT_TEXTS, LONG_TEXT)
"""Texts that both tokenizers encode by default."""

# Alternative names of an attribute of a tokenizer. The first existing attribute is compared.
_VOCABULARY_NAMES = ("get_vocab", "vocab", "vocabulary")
_SPECIAL_TOKEN_NAMES = ("special_tokens_map", "all_special_tokens", "special_tokens")
_PADDING_SIDE_NAMES = ("padding_side",)
_TRUNCATION_NAMES = (
    ("truncation_side",),
    ("model_max_length", "max_length"),
    ("truncation",),
)
# Names of different attributes, which are all compared.
_SPECIAL_ID_NAMES = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "unk_token_id",
    "mask_token_id",
)

Difference = tuple[str, str]
"""Topic of a difference, such as 'padding side', and a description of the difference."""


def probe_tokenizers(
    training: Any, serving: Any, *, texts: Sequence[str] = PROBE_TEXTS
) -> ProbeResult:
    """Compare vocabulary, special tokens, padding side, truncation and the ids of texts.

    Args:
        training: An object with ``encode(text)``, which returns ids, and a vocabulary as
            ``get_vocab()``, ``vocab`` or ``vocabulary``. Padding side, truncation and special
            tokens are read from the attributes of Hugging Face tokenizers.
        serving: The tokenizer for serving, with the same attributes.
        texts: Texts that both tokenizers encode.

    Raises:
        ContractError: A tokenizer cannot encode, or does not return ids.
    """
    for role, tokenizer in (("training", training), ("serving", serving)):
        if isinstance(tokenizer, str) or not callable(getattr(tokenizer, "encode", None)):
            raise ContractError(
                f"The {role} tokenizer must have encode(text), got {type(tokenizer).__name__}.",
                fix="Pass the loaded tokenizer.",
            )
    differences = [
        *_vocabulary_differences(training, serving),
        *_attribute_differences("special tokens", _SPECIAL_TOKEN_NAMES, training, serving),
        *(
            d
            for n in _SPECIAL_ID_NAMES
            for d in _attribute_differences(n.replace("_", " "), (n,), training, serving)
        ),
        *_attribute_differences("padding side", _PADDING_SIDE_NAMES, training, serving),
        *(
            d
            for names in _TRUNCATION_NAMES
            for d in _attribute_differences("truncation", names, training, serving)
        ),
        *_id_differences(training, serving, texts),
    ]
    vocabulary_size = len(_read_vocabulary(training) or ())
    numbers: dict[str, float | int | str] = {"texts": len(texts), "vocabulary": vocabulary_size}
    if differences:
        topic, description = differences[0]
        return ProbeResult(
            name=NAME,
            outcome="fail",
            seen=f"First difference, {topic}: {description}. Number of differences: "
            f"{len(differences)} ({', '.join(dict.fromkeys(d[0] for d in differences))}).",
            numbers=numbers | {"differences": len(differences), "first": topic},
            why="In serving, the model receives other ids for a text than in its training.",
            fix="Serve the tokenizer that was stored with the trained model.",
        )
    if not vocabulary_size or not texts:
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="No vocabulary was found as get_vocab(), vocab or vocabulary."
            if not vocabulary_size
            else "No text was given.",
            numbers=numbers,
            fix="Provide the vocabulary as an attribute with one of these names."
            if not vocabulary_size
            else "Pass texts.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{vocabulary_size:,} tokens, special tokens, padding side, truncation and the ids of "
        f"{pluralize(len(texts), 'text')} agree.",
        numbers=numbers,
    )


def _read_vocabulary(tokenizer: Any) -> dict[str, int] | None:
    """Return the id of each token; None if the tokenizer has no readable vocabulary."""
    value = _read_attribute(tokenizer, _VOCABULARY_NAMES)
    if isinstance(value, Mapping):
        return {str(token): int(token_id) for token, token_id in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {str(token): token_id for token_id, token in enumerate(value)}
    return None


def _vocabulary_differences(training: Any, serving: Any) -> Iterable[Difference]:
    training_ids, serving_ids = _read_vocabulary(training), _read_vocabulary(serving)
    if training_ids == serving_ids:
        return
    if training_ids is None or serving_ids is None:
        role = "training" if training_ids is None else "serving"
        yield "vocabulary", f"the {role} tokenizer has none"
        return
    for token, token_id in sorted(training_ids.items(), key=lambda item: item[1]):
        if serving_ids.get(token) != token_id:
            serving_id = serving_ids.get(token, "none")
            yield (
                "vocabulary",
                f"token {token!r} is {token_id} in training and {serving_id} in serving",
            )
            return
    added_token = min(
        serving_ids.keys() - training_ids.keys(), key=lambda token: serving_ids[token]
    )
    yield (
        "vocabulary",
        f"only serving has the token {added_token!r} (id {serving_ids[added_token]}); "
        f"{len(training_ids):,} tokens in training and {len(serving_ids):,} in serving",
    )


def _attribute_differences(
    topic: str, names: Sequence[str], training: Any, serving: Any
) -> Iterable[Difference]:
    """Yield a difference if the two tokenizers differ in an attribute.

    ``names`` are alternative names of the attribute. The first existing name of each tokenizer is
    used.
    """
    training_value = _to_plain_data(_read_attribute(training, names))
    serving_value = _to_plain_data(_read_attribute(serving, names))
    if training_value != serving_value:
        tokenizers = (training, serving)
        name = next(n for n in names if any(getattr(t, n, None) is not None for t in tokenizers))
        yield (
            topic,
            f"{name} is {_format_value(training_value)} in training and "
            f"{_format_value(serving_value)} in serving",
        )


def _id_differences(training: Any, serving: Any, texts: Sequence[str]) -> Iterable[Difference]:
    for text in texts:
        training_ids = _encode(training, text, "training")
        serving_ids = _encode(serving, text, "serving")
        if training_ids == serving_ids:
            continue
        position = next(
            (i for i, (a, b) in enumerate(zip(training_ids, serving_ids, strict=False)) if a != b),
            min(len(training_ids), len(serving_ids)),
        )
        yield (
            "ids of a text",
            f"{text[:40]!r} has {_format_id(training_ids, position)} in training and "
            f"{_format_id(serving_ids, position)} in serving at position {position} "
            f"({len(training_ids)} ids in training and {len(serving_ids)} in serving)",
        )


def _encode(tokenizer: Any, text: str, role: str) -> list[int]:
    """Return the ids of a text, from a list, a mapping with input_ids or an object with .ids."""
    try:
        encoded = tokenizer.encode(text)
    except Exception as error:  # user code
        raise ContractError(
            f"The {role} tokenizer raised {type(error).__name__} on {text[:40]!r}: {error}.",
            fix="A tokenizer must accept every text that a request may contain.",
        ) from error
    if isinstance(encoded, Mapping):
        encoded = encoded.get("input_ids")
    ids = getattr(encoded, "ids", encoded)
    try:
        return [int(token_id) for token_id in ids]
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"encode() of the {role} tokenizer must return ids, got {type(ids).__name__} for "
            f"{text[:40]!r}.",
            fix="Return a list of integers, or an object with .ids, from encode(text).",
        ) from error


def _read_attribute(tokenizer: Any, names: Sequence[str]) -> Any:
    """Return the first existing attribute in ``names``; if it is a function, its result."""
    for name in names:
        value = getattr(tokenizer, name, None)
        if value is not None:
            return value() if callable(value) else value
    return None


def _to_plain_data(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dictionaries, which can be compared."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain_data(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_to_plain_data(item) for item in value]
    return value if isinstance(value, int | float | None) else str(value)


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _format_id(ids: Sequence[int], position: int) -> str:
    return f"id {ids[position]}" if position < len(ids) else "no id"
