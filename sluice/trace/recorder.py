"""Everything a trace holds in memory before it is written, and when it is."""

import functools
import operator
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sluice.base.settings import Record
from sluice.trace.deferred import Deferred
from sluice.trace.evidence.trace import Start
from sluice.trace.lane import Lane
from sluice.trace.settings import TraceSettings
from sluice.trace.storage import TraceFiles, line_of
from sluice.trace.words import OVERFLOW, WordBook

_RECENT_STEPS = 128
"""Steps whose detail is kept from one flush to the next: a program that makes more is fast, and
what it did last counts."""

_MOST_LINES = 1024
"""Lines of detail that wait for a flush; the oldest fall out."""

NumbersRow = tuple[
    int, list[Tensor | float], list[tuple[int, Tensor | float, float]], Tensor | None, bool
]
"""Of one step: its number, losses, clips by optimizer, norm and bound, scale; whether it is kept
for ever."""


_STEP_FIELDS, _NUMBER_FIELDS = 6, 5
"""Of a row."""


def _rows(flat: Iterable[Any], fields: int) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(flat)] * fields, strict=True)


class EndedStep(NamedTuple):
    """What a step left, or some that repeat an order, as the thread that made it held it."""

    step: int
    thread: int
    marks: list[int]
    """Codes and times in turn."""
    losses: list[Any]
    """Of its backward passes; of steps that repeat an order, the number of each and its losses in
    turn."""
    clips: list[tuple[int, Tensor | float, float]]
    scale: Tensor | None
    ended: int
    """By the clock [ns]; 0 of steps that repeat an order and were not looked at closely."""
    began: int
    """When the step before it in this thread had ended [ns]."""
    took: int
    """Since a step ended that was looked at closely [ns]."""
    spent: int
    """Of that, on statistics [ns]."""


class Thin:
    """Chooses rows of a series so that their number grows with the logarithm of its length."""

    __slots__ = ("_every", "_left", "_next", "_rows", "_seen")

    def __init__(self, rows: int) -> None:
        self._rows, self._left, self._every, self._seen, self._next = rows, rows, 1, 0, 0

    def skips(self, num: int) -> bool:
        """Leave so many rows of the series out; not if one of them is to be kept."""
        if self._seen + num > self._next:
            return False
        self._seen += num
        return True

    def takes_next(self) -> bool:
        """Tell whether the next row of the series is kept."""
        seen = self._seen
        self._seen = seen + 1
        if seen < self._next:
            return False
        self._left -= 1
        if not self._left:
            self._left, self._every = self._rows // 2, self._every * 2
        self._next = -(-(seen + 1) // self._every) * self._every
        return True


class Recorder:
    """Takes what was seen and writes it every few seconds.

    Args:
        folder: Of this process; made when there is something to write.
        start: Asked when the folder is made: a process knows its rank late.
        clock: Monotonic time [ns].
    """

    def __init__(
        self,
        folder: Path,
        settings: TraceSettings,
        start: Callable[[], Start],
        *,
        clock: Callable[[], int],
    ) -> None:
        self.folder = folder
        self._settings, self._start, self._clock = settings, start, clock
        self.book = WordBook()
        self._files: TraceFiles | None = None
        self._began = clock()
        self.due = self._began
        """When the next flush is [ns]; the first comes with the first step."""
        self._needed: list[bytes] = []
        self._series: list[tuple[str, Record]] = []
        self._detail: deque[tuple[str, Record]] = deque(maxlen=_MOST_LINES)
        self._counts: dict[int, list[int]] = {}
        # Rows lie flat: a container for each would have the program's garbage collected more often.
        self._steps: deque[Any] = deque(maxlen=_RECENT_STEPS * _STEP_FIELDS)
        """Of each step its number, word, the positions that are shown, all times, its end and the
        end of the one before."""
        self._numbers: deque[Any] = deque(maxlen=_RECENT_STEPS * _NUMBER_FIELDS)
        """Rows of numbers that are not kept for ever."""
        self._kept_numbers: list[NumbersRow] = []
        self._read: list[tuple[list[Any], bool]] = []
        self.rates: list[tuple[int, int, list[float]]] = []
        """Step, optimizer and its new rates, until they are written."""
        self._thin_numbers = Thin(settings.history_rows)
        self._thin_measures = Thin(settings.history_rows)
        self.deferred = Deferred()
        self.dropped_words = 0

    def write(self, record: str, fact: Record) -> None:
        """Keep a fact for ever."""
        self._needed.append(line_of(record, fact.model_dump()))

    def write_detail(self, record: str, fact: Record) -> None:
        """Keep a fact while it is recent."""
        self._detail.append((record, fact))

    def write_measures(self, fact: Record) -> None:
        """Keep a fact while it is recent, and some of these for ever."""
        self._detail.append(("measures", fact))
        if self._thin_measures.takes_next():
            self._series.append(("measures", fact))

    def settle(self, rows: Iterable[EndedStep]) -> None:
        """Sort what some steps left."""
        for row in rows:
            word, shown = self.book.close(row.marks[::2], row.thread)
            num, first = (1, row.step) if row.ended else (len(row.losses) // 2, row.losses[0])
            counted = self._counts.get(word)
            if counted is None:
                self._counts[word] = [first, row.step, num]
            else:
                counted[1] = row.step
                counted[2] += num
            if word == OVERFLOW:
                self.dropped_words += num
            if not row.ended:
                self._settle_repeats(row.losses)
                continue
            # Nothing for the garbage collector to look at.
            times = array("q", row.marks[1::2])
            self._steps += (row.step, word, shown, times, row.ended, row.began)
            if row.losses or row.clips or row.scale is not None:
                keep = self._thin_numbers.takes_next()
                numbers = (row.step, row.losses, row.clips, row.scale, keep)
                if keep:
                    self._kept_numbers.append(numbers)
                else:
                    self._numbers += numbers

    def _settle_repeats(self, flat: Sequence[Any]) -> None:
        thin = self._thin_numbers
        are_skipped = thin.skips(len(flat) // 2)
        for step, losses in _rows(flat, 2):
            keep = not are_skipped and thin.takes_next()
            if keep:
                self._kept_numbers.append((step, losses, [], None, keep))
            else:
                self._numbers += (step, losses, (), None, keep)

    def end_open_word(self, step: int, lane: Lane) -> None:
        """Keep the order of what led to no step any more."""
        word, _ = self.book.close(lane.codes, lane.number)
        if word != OVERFLOW:
            self._counts[-1 - word] = [step, step, 1]

    def read_deferred(self) -> None:
        """Wait for the device, once, and read everything that was asked for."""
        self._ask_numbers()
        self.deferred.read()

    def flush(self) -> None:
        """Write everything that was seen and read so far.

        Raises:
            OSError: The folder cannot be made or written.
        """
        numbers, kept = self._number_lines()
        if self._files is None:
            self._files = TraceFiles(
                self.folder,
                recent_bytes=self._settings.recent_bytes,
                history_bytes=self._settings.history_bytes,
            )
            first = [line_of("start", self._start().model_dump())]
            self._files.write_history(first, needed=True)
        was_full = self._files.is_full
        self._files.write_history(self._order_lines(), needed=True)
        self._files.write_history(
            [*(line_of(name, fact.model_dump()) for name, fact in self._series), *kept],
            needed=False,
        )
        self._files.write_history(self._needed, needed=True)
        self._files.write_recent(
            [
                *(line_of(name, fact.model_dump()) for name, fact in self._detail),
                *self._step_lines(),
                *numbers,
            ]
        )
        if self._files.is_full and not was_full:
            text = f"The history reached {self._settings.history_bytes:,} bytes; later series lack."
            note = {
                "step": self._steps[-_STEP_FIELDS] if self._steps else 0,
                "kind": "full",
                "text": text,
            }
            self._files.write_history([line_of("note", note)], needed=True)
        self._needed, self._series = [], []
        self._detail.clear()
        self._steps.clear()
        self.due = self._clock() + int(self._settings.flush_s * 1e9)

    def close(self) -> None:
        """Close the files. What was not flushed is lost."""
        if self._files is not None:
            self._files.close()

    @property
    def has_seen_anything(self) -> bool:
        """Whether the process did anything that is worth a folder."""
        return self._files is not None or bool(self._counts) or bool(self._needed)

    def _order_lines(self) -> Iterable[bytes]:
        for index, thread, marks in self.book.new:
            yield line_of("word", {"index": index, "thread": thread, "marks": marks})
        self.book.new.clear()
        if self._counts:
            rows = [[key, *counted] for key, counted in self._counts.items()]
            yield line_of("order", {"rows": rows})
            self._counts = {}
        if self.rates:
            yield line_of("rates", {"rows": self.rates})
            self.rates = []

    def _step_lines(self) -> Iterable[bytes]:
        if self._steps:
            began = self._began
            rows = [
                [
                    step,
                    word,
                    [(times[i] - began) // 1000 for i in shown],
                    (end - began) // 1000,
                    (start - began) // 1000,
                ]
                for step, word, shown, times, end, start in _rows(self._steps, _STEP_FIELDS)
                if word != OVERFLOW
            ]
            yield line_of("steps", {"rows": rows})

    def _ask_numbers(self) -> None:
        recent: Iterator[Any] = _rows(self._numbers, _NUMBER_FIELDS)
        rows: list[NumbersRow] = sorted([*recent, *self._kept_numbers], key=operator.itemgetter(0))
        self._numbers.clear()
        self._kept_numbers = []
        asked: list[Tensor | float] = []
        for _, losses, clips, scale, _ in rows:
            asked += losses
            for _, norm, _ in clips:
                asked.append(norm)
            if scale is not None:
                asked.append(scale)
        if rows:
            self.deferred.ask(asked, functools.partial(self._numbers_read, rows))

    def _numbers_read(self, rows: Iterable[NumbersRow], values: Sequence[float]) -> None:
        given = iter(values)
        for step, losses, clips, scale, is_kept in rows:
            told = list(islice(given, len(losses)))
            norms = [(index, next(given), most) for index, _, most in clips]
            row = [step, told, norms, None if scale is None else next(given)]
            self._read.append((row, is_kept))

    def _number_lines(self) -> tuple[list[bytes], list[bytes]]:
        """Return the line of recent numbers, and of those that are kept for ever instead."""
        rows, self._read = self._read, []
        told = [row for row, kept in rows if not kept], [row for row, kept in rows if kept]
        recent, kept = ([line_of("numbers", {"rows": some})] if some else [] for some in told)
        return recent, kept
