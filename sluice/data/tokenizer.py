"""Tokenizer of words, whose vocabulary is a JSON file."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sluice.base.digests import digest_json
from sluice.base.errors import ContractError, SourceError
from sluice.base.files import write_atomic

PADDING, UNKNOWN = "<pad>", "<unk>"
"""First two entries of every vocabulary: padding, and words outside of the vocabulary."""

_WORD = re.compile(r"\w+|[^\w\s]")


class WordTokenizer:
    """Splits a text into lower-case words and punctuation marks, and returns their ids.

    Args:
        words: The vocabulary in the order of the ids; the first two are ``PADDING`` and
            ``UNKNOWN``.

    Raises:
        ContractError: The vocabulary does not begin with these two entries, or repeats a word.

    >>> tokenizer = WordTokenizer.build(["Not bad, not good."], max_words=10)
    >>> tokenizer.encode("Not so good!")
    [2, 1, 6, 1]
    """

    pad_id = 0
    """Id of padding."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if self.words[:2] != (PADDING, UNKNOWN) or len(self._ids) != len(self.words):
            raise ContractError(
                f"A vocabulary must begin with {PADDING} and {UNKNOWN}, and have every word once; "
                f"got {len(self.words)} words, {len(self._ids)} different, of which the first are "
                f"{list(self.words[:2])}.",
                fix="Build the vocabulary with WordTokenizer.build.",
            )

    @classmethod
    def build(cls, texts: Iterable[str], *, max_words: int, min_count: int = 1) -> "WordTokenizer":
        """Return the tokenizer of the most frequent words of texts; pass texts of train rows only.

        Args:
            texts: Texts.
            max_words: Maximum size of the vocabulary, including ``PADDING`` and ``UNKNOWN``.
            min_count: Minimum number of occurrences of a word in the vocabulary.
        """
        counts = Counter(word for text in texts for word in split_words(text))
        # Equally frequent words are sorted, so that the order of the texts does not matter.
        words_by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        words = [word for word in words_by_frequency if counts[word] >= min_count]
        return cls([PADDING, UNKNOWN, *words[: max(max_words - 2, 0)]])

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        """Read a vocabulary that ``save`` wrote.

        Raises:
            SourceError: The file is missing, or is not a list of words.
            ContractError: The list does not begin with ``PADDING`` and ``UNKNOWN``, or repeats a
                word.
        """
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SourceError(
                f"The vocabulary {path} cannot be read: {error}.",
                fix="Correct the path, or write the file again with WordTokenizer.save.",
            ) from None
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise SourceError(
                f"The vocabulary {path} must be a JSON list of words.",
                fix="Write the file again with WordTokenizer.save.",
            )
        return cls(words)

    def save(self, path: Path) -> None:
        """Write the vocabulary as a JSON list of words."""
        lines = ",\n".join(json.dumps(word, ensure_ascii=False) for word in self.words)
        write_atomic(path, f"[\n{lines}\n]\n".encode())

    @property
    def vocab_size(self) -> int:
        """Number of ids, including ``PADDING`` and ``UNKNOWN``."""
        return len(self.words)

    @property
    def digest(self) -> str:
        """Digest of the vocabulary."""
        return digest_json(list(self.words))

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of a text; empty for a text without words."""
        return [self._ids.get(word, 1) for word in split_words(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words of ids, separated by spaces."""
        return " ".join(self.words[token] for token in ids)


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())
