"""Interns events and event sequences: stores each only once, and assigns a small integer to it."""

import threading
from collections.abc import Sequence
from typing import Any

from sluice.trace.records.events import TraceEvent, TraceEventKind

_MAX_BLOCK_LENGTH = 8
"""Maximum number of events in a block whose consecutive repeats are stored once."""
_MAX_SEQUENCES = 2048
"""Maximum number of distinct sequences in a trace. Steps with other sequences are only counted."""
_MAX_CACHED_STEPS = 4096
"""Maximum number of cached results of ``intern_step``. The cache is cleared when it is full."""

EventKey = tuple[TraceEventKind, int, int, tuple[str, ...], int]
"""Fields of a ``TraceEvent``: kind, object_id, related_id, flags, repeat_length."""

OVERFLOW_INDEX = -(2**31)
"""Sequence index of all steps beyond the maximum number of distinct sequences. It differs from
every valid index. It also differs from the keys -1 - index, under which ``Recorder`` counts
unfinished steps."""


class EventInterner:
    """Assigns a code to each distinct event, and an index to each distinct sequence of events.

    Codes and indices are assigned from 0 on, in the order of first appearance.
    """

    def __init__(self) -> None:
        self._code_by_event: dict[EventKey, int] = {}
        self._event_by_code: list[EventKey] = []
        self._lock = threading.Lock()
        self._index_by_sequence: dict[tuple[int, tuple[int, ...]], int] = {}
        """Index of each sequence, by its thread and event codes."""
        self._cache: dict[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}
        """Results of ``intern_step``, by its arguments."""
        self.unwritten_sequences: list[tuple[int, int, tuple[EventKey, ...]]] = []
        """Index, thread and events of the sequences that are not written yet; the recorder clears
        the list."""

    def intern(self, event: EventKey) -> int:
        """Return the code of an event."""
        code = self._code_by_event.get(event)
        if code is None:
            with self._lock:  # two threads may record the same new event at once
                code = self._code_by_event.get(event)
                if code is None:
                    self._event_by_code.append(event)
                    code = self._code_by_event[event] = len(self._event_by_code) - 1
        return code

    def event(self, code: int) -> EventKey:
        """Return the event of a code."""
        return self._event_by_code[code]

    def intern_step(self, codes: Sequence[int], thread: int) -> tuple[int, tuple[int, ...]]:
        """Return the index of a step's sequence, and the positions in ``codes`` of its events.

        The sequence contains each repeated block of events only once. If the sequence is new and
        the maximum number of distinct sequences is reached, the index is ``OVERFLOW_INDEX``.
        """
        cache_key = (thread, tuple(codes))
        cached_result = self._cache.get(cache_key)
        if cached_result is None:
            if len(self._cache) >= _MAX_CACHED_STEPS:
                self._cache.clear()
            folded_codes, positions = self.fold_repeats(codes)
            index = self._intern_sequence(thread, tuple(folded_codes))
            cached_result = self._cache[cache_key] = (index, tuple(positions))
        return cached_result

    def fold_repeats(self, codes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the codes with each repeated block only once, and their positions in ``codes``.

        The position of the last event of a repeated block is its position in the last repeat. So
        the time of this event is the end of all repeats.
        """
        folded_codes: list[int] = []
        positions: list[int] = []
        start = 0
        while start < len(codes):
            length, end = _find_block(codes, start)
            folded_codes += codes[start : start + length]
            positions += range(start, start + length)
            if end > start + length:
                kind, object_id, related_id, flags, _ = self._event_by_code[folded_codes[-1]]
                folded_codes[-1] = self.intern((kind, object_id, related_id, flags, length))
                positions[-1] = end - 1
            start = end
        return folded_codes, positions

    def _intern_sequence(self, thread: int, folded_codes: tuple[int, ...]) -> int:
        index = self._index_by_sequence.get((thread, folded_codes))
        if index is None:
            if len(self._index_by_sequence) >= _MAX_SEQUENCES:
                return OVERFLOW_INDEX
            index = self._index_by_sequence[thread, folded_codes] = len(self._index_by_sequence)
            self.unwritten_sequences.append(
                (index, thread, tuple(self._event_by_code[code] for code in folded_codes))
            )
        return index


def _find_block(codes: Sequence[int], start: int) -> tuple[int, int]:
    """Return the length of the block at ``start``, and the position after its last repeat.

    The shortest block that repeats is found. An event at which no repeated block begins is a block
    of length 1.
    """
    for length in range(1, _MAX_BLOCK_LENGTH + 1):
        block = codes[start : start + length]
        end = start + length
        while len(block) == length and codes[end : end + length] == block:
            end += length
        if end > start + length:
            return length, end
    return 1, start + 1


def decode_event(fields: Sequence[Any]) -> TraceEvent:
    """Return an event from its stored fields, which are in the order of ``EventKey``."""
    return TraceEvent.model_validate(dict(zip(TraceEvent.model_fields, fields, strict=True)))
