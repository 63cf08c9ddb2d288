"""Reads pairs of answers to a prompt, with optional human labels, from a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from sluice.base.errors import ContractError, SourceError
from sluice.base.pluralize import pluralize

Choice = Literal["candidate", "baseline", "tie"]
"""Choice of the better of two answers."""

REQUIRED_COLUMNS = ("prompt", "candidate", "baseline")
"""Required columns of a file of pairs."""
LABEL_COLUMN = "human"
"""Name of the optional column with the choice of a person."""
SUFFIXES = (".csv", ".parquet")
"""Suffixes of supported files of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """Two answers to one prompt."""

    prompt: str
    candidate: str
    baseline: str
    human: Choice | None = None
    """Choice of a person; None without a label."""


def read_pairs(path: Path) -> tuple[AnswerPair, ...]:
    """Read pairs from Parquet or CSV: prompt, candidate, baseline, and optionally human.

    Raises:
        SourceError: The file is missing or cannot be read.
        ContractError: The file has no rows or lacks a column, a text is missing, or a label is not
            'candidate', 'baseline' or 'tie'.
    """
    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"Pairs must be in a file that ends in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Write the pairs as CSV or Parquet.",
        )
    try:
        if path.suffix == ".csv":
            # All fields are read as text: "007" is not a number, and "None" and "" are valid
            # answers.
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        else:
            table = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"The pairs in {path} cannot be read: {error}.", fix="Correct the path or the file."
        ) from None
    if path.suffix == ".csv":
        _require_no_extra_fields(table, path)
    missing_columns = [name for name in REQUIRED_COLUMNS if name not in table.columns]
    if missing_columns or table.empty:
        raise ContractError(
            f"{path} must have the columns {', '.join(REQUIRED_COLUMNS)} and at least one row, "
            f"got the columns {', '.join(map(str, table.columns)) or 'none'} and "
            f"{pluralize(len(table), 'row')}.",
            fix=f"Write one pair per row. An optional column '{LABEL_COLUMN}' contains human "
            "labels.",
        )
    labels = table[LABEL_COLUMN] if LABEL_COLUMN in table.columns else [None] * len(table)
    texts = zip(*(table[name] for name in REQUIRED_COLUMNS), labels, strict=True)
    return tuple(_parse_pair(row, *fields, path=path) for row, fields in enumerate(texts))


def _require_no_extra_fields(table: pd.DataFrame, path: Path) -> None:
    """Raise an error for rows with too many fields, which pandas would read as an index."""
    if not isinstance(table.index, pd.RangeIndex):
        raise ContractError(
            f"{path} has rows with more fields than its {len(table.columns)} columns.",
            cause="A text with a comma is not quoted.",
            fix='Quote texts that contain commas: "Yes, it is".',
        )


def _parse_pair(
    row: int, prompt: Any, candidate: Any, baseline: Any, label: Any, *, path: Path
) -> AnswerPair:
    texts = {"prompt": prompt, "candidate": candidate, "baseline": baseline}
    for name, text in texts.items():
        if not isinstance(text, str):
            is_missing = pd.api.types.is_scalar(text) and pd.isna(text)
            value_text = "none" if is_missing else f"{text!r:.80}"
            raise ContractError(
                f"{path} row {row}: '{name}' must be a text, got {value_text}.",
                fix="Convert conversations and numbers to text. For a missing answer, remove the "
                "pair or use an empty text.",
            )
    has_no_label = pd.api.types.is_scalar(label) and (pd.isna(label) or label == "")
    human: Any = None if has_no_label else label
    if not has_no_label and not (isinstance(label, str) and label in get_args(Choice)):
        raise ContractError(
            f"{path} row {row}: '{LABEL_COLUMN}' must be {', '.join(get_args(Choice))} or empty, "
            f"got {human!r}.",
            fix="Use one of these labels, or leave the field empty.",
        )
    return AnswerPair(**texts, human=human)
