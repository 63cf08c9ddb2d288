"""How marks become words: small numbers, repeats folded, equal orders told once."""

import threading
from collections.abc import Sequence
from typing import Any

from sluice.trace.evidence.order import Mark, MarkKind

_LONGEST_BLOCK = 8
_MOST_WORDS = 2048
_MOST_RAW = 4096

Code = tuple[MarkKind, int, int, tuple[str, ...], int]
"""The fields of a ``Mark``: kind, subject, about, flags, block."""

OVERFLOW = -(2**31)
"""The word of a step beyond the most words that are told apart; a key that no other count has."""


class WordBook:
    """Codes of marks and of words, in the order of their first appearance."""

    def __init__(self) -> None:
        self._codes: dict[Code, int] = {}
        self._by_code: list[Code] = []
        self._lock = threading.Lock()
        self._words: dict[tuple[int, tuple[int, ...]], int] = {}
        self._raw: dict[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}
        self.new: list[tuple[int, int, tuple[Code, ...]]] = []
        """Index, thread and marks of words that were not written yet; the reader empties it."""

    def code(self, mark: Code) -> int:
        """Return the number that stands for a mark."""
        found = self._codes.get(mark)
        if found is None:
            with self._lock:  # of two threads that meet it first
                found = self._codes.get(mark)
                if found is None:
                    self._by_code.append(mark)
                    found = self._codes[mark] = len(self._by_code) - 1
        return found

    def mark(self, code: int) -> Code:
        """Return the mark that a number stands for."""
        return self._by_code[code]

    def close(self, codes: Sequence[int], thread: int) -> tuple[int, tuple[int, ...]]:
        """Return the word of these marks, and the positions of those that it shows."""
        raw = (thread, tuple(codes))
        known = self._raw.get(raw)
        if known is None:
            if len(self._raw) >= _MOST_RAW:
                self._raw.clear()
            shown, positions = self.fold(codes)
            known = self._raw[raw] = (self._word(thread, tuple(shown)), tuple(positions))
        return known

    def fold(self, codes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the marks with repeated blocks shown once, and their positions before.

        The last mark of a block stands where its repeats end: until then it went on.
        """
        shown: list[int] = []
        positions: list[int] = []
        at = 0
        while at < len(codes):
            length, after = _repeated_block(codes, at)
            shown += codes[at : at + length]
            positions += range(at, at + length)
            if after > at + length:
                kind, subject, about, flags, _ = self._by_code[shown[-1]]
                shown[-1] = self.code((kind, subject, about, flags, length))
                positions[-1] = after - 1
            at = after
        return shown, positions

    def _word(self, thread: int, shown: tuple[int, ...]) -> int:
        found = self._words.get((thread, shown))
        if found is None:
            if len(self._words) >= _MOST_WORDS:
                return OVERFLOW
            found = self._words[thread, shown] = len(self._words)
            self.new.append((found, thread, tuple(self._by_code[code] for code in shown)))
        return found


def _repeated_block(codes: Sequence[int], at: int) -> tuple[int, int]:
    """Return the length of the block at a position, and where its repeats end."""
    for length in range(1, _LONGEST_BLOCK + 1):
        block = codes[at : at + length]
        after = at + length
        while len(block) == length and codes[after : after + length] == block:
            after += length
        if after > at + length:
            return length, after
    return 1, at + 1


def as_mark(code: Sequence[Any]) -> Mark:
    """Return the mark of a code as it was written."""
    kind, subject, about, flags, block = code
    return Mark(kind=kind, subject=subject, about=about, flags=tuple(flags), block=block)
