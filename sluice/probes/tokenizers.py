"""Compares the tokenizers of training and serving."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sluice.base.errors import ContractError
from sluice.probes.result import ProbeResult

NAME = "tokenizers"

PROBE_TEXTS = (
    "",
    "The quick brown fox jumps over 13 lazy dogs.",
    "  leading, trailing and   repeated spaces \t\n",
    "UPPER lower MiXeD caf\u00e9 cafe\u0301 na\u00efve",
    "don't e-mail a@b.example 3.14 1,000 #tag",
    "\u6771\u4eac \u041c\u043e\u0441\u043a\u0432\u0430 \U0001f642",
    "zzqx unheardofword",
    "word " * 3_000,
)
"""Texts: empty, plain, spaces, case and accents in two forms, punctuation, scripts, unknown words,
and one above the maximum length."""

_VOCABULARY = ("get_vocab", "vocab", "vocabulary")
_SPECIAL = ("special_tokens_map", "all_special_tokens", "special_tokens")
_PADDING_SIDE = ("padding_side",)
_TRUNCATION = (
    ("truncation_side",),
    ("model_max_length", "max_length"),
    ("truncation",),
)
_SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "mask_token_id")

Difference = tuple[str, str]
"""Name of a difference, and a description."""


def probe_tokenizers(
    training: Any, serving: Any, *, texts: Sequence[str] = PROBE_TEXTS
) -> ProbeResult:
    """Compare vocabulary, special tokens, padding side, truncation and the ids of texts.

    Args:
        training: An object with ``encode(text)``, which returns ids, and a vocabulary as
            ``get_vocab()``, ``vocab`` or ``vocabulary``. Padding side, truncation and special
            tokens are read from the attributes of Hugging Face tokenizers.
        serving: The same for serving.
        texts: Texts that both encode.

    Raises:
        ContractError: A tokenizer cannot encode, or does not return ids.
    """
    for role, one in (("training", training), ("serving", serving)):
        if isinstance(one, str) or not callable(getattr(one, "encode", None)):
            raise ContractError(
                f"The {role} tokenizer must have encode(text), got {type(one).__name__}.",
                fix="Pass the loaded tokenizer.",
            )
    differences = [
        *_vocabulary(training, serving),
        *_named("special tokens", _SPECIAL, training, serving),
        *(d for n in _SPECIAL_IDS for d in _named(n.replace("_", " "), (n,), training, serving)),
        *_named("padding side", _PADDING_SIDE, training, serving),
        *(d for names in _TRUNCATION for d in _named("truncation", names, training, serving)),
        *_ids(training, serving, texts),
    ]
    size = len(_vocabulary_of(training) or ())
    numbers: dict[str, float | int | str] = {"texts": len(texts), "vocabulary": size}
    if differences:
        about, how = differences[0]
        return ProbeResult(
            name=NAME,
            outcome="fail",
            seen=f"First difference, {about}: {how}. Number of differences: {len(differences)} "
            f"({', '.join(dict.fromkeys(d[0] for d in differences))}).",
            numbers=numbers | {"differences": len(differences), "first": about},
            why="The served model gets other ids than it was trained on.",
            fix="Serve the tokenizer that was stored with the trained model.",
        )
    if not size or not texts:
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="No vocabulary was found as get_vocab(), vocab or vocabulary."
            if not size
            else "No text was given.",
            numbers=numbers,
            fix="Provide the vocabulary under one of these names." if not size else "Pass texts.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{size:,} tokens, special tokens, padding side, truncation and the ids of "
        f"{len(texts)} texts agree.",
        numbers=numbers,
    )


def _vocabulary_of(tokenizer: Any) -> dict[str, int] | None:
    value = _read(tokenizer, _VOCABULARY)
    if isinstance(value, Mapping):
        return {str(token): int(number) for token, number in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {str(token): number for number, token in enumerate(value)}
    return None


def _vocabulary(training: Any, serving: Any) -> Iterable[Difference]:
    ours, theirs = _vocabulary_of(training), _vocabulary_of(serving)
    if ours == theirs:
        return
    if ours is None or theirs is None:
        yield "vocabulary", f"{'training' if ours is None else 'serving'} has none"
        return
    by_id = sorted(ours.items(), key=lambda item: item[1])
    for token, number in by_id:
        if theirs.get(token) != number:
            other = theirs.get(token, "none")
            yield "vocabulary", f"token {token!r} is {number} in training and {other} in serving"
            return
    added = min(theirs.keys() - ours.keys(), key=lambda token: theirs[token])
    yield (
        "vocabulary",
        f"serving has {added!r} ({theirs[added]}), which training lacks; {len(ours):,} and "
        f"{len(theirs):,} tokens",
    )


def _named(about: str, names: Sequence[str], training: Any, serving: Any) -> Iterable[Difference]:
    ours, theirs = _plain(_read(training, names)), _plain(_read(serving, names))
    if ours != theirs:
        yield about, f"{names[0]} is {_shown(ours)} in training and {_shown(theirs)} in serving"


def _ids(training: Any, serving: Any, texts: Sequence[str]) -> Iterable[Difference]:
    for text in texts:
        ours, theirs = _encoded(training, text, "training"), _encoded(serving, text, "serving")
        if ours == theirs:
            continue
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            min(len(ours), len(theirs)),
        )
        yield (
            "ids of a text",
            f"{text[:40]!r} has {_at(ours, at)} in training and {_at(theirs, at)} in serving at "
            f"position {at} ({len(ours)} and {len(theirs)} ids)",
        )


def _encoded(tokenizer: Any, text: str, role: str) -> list[int]:
    try:
        found = tokenizer.encode(text)
    except Exception as error:  # user code
        raise ContractError(
            f"The {role} tokenizer raised {type(error).__name__} on {text[:40]!r}: {error}.",
            fix="A tokenizer must accept every text that a request may contain.",
        ) from error
    if isinstance(found, Mapping):
        found = found.get("input_ids")
    found = getattr(found, "ids", found)
    try:
        return [int(number) for number in found]
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"encode() of the {role} tokenizer must return ids, got {type(found).__name__} for "
            f"{text[:40]!r}.",
            fix="Return a list of integers, or an object with .ids, from encode(text).",
        ) from error


def _read(tokenizer: Any, names: Sequence[str]) -> Any:
    """Return the first of these attributes that exists; functions are called without arguments."""
    for name in names:
        value = getattr(tokenizer, name, None)
        if value is not None:
            return value() if callable(value) else value
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | None) else str(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."


def _at(ids: Sequence[int], position: int) -> str:
    return f"id {ids[position]}" if position < len(ids) else "no id"
