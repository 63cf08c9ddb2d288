"""Buffers the records of a trace in memory, and writes them every few seconds.

A trace has a history, which covers the whole run and grows slowly, and a ring buffer of recent
detail (see ``sluice.trace.recording.storage``).
"""

import functools
import operator
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from sluice.base.settings import Record
from sluice.trace.recording.device_reads import BatchedDeviceReads
from sluice.trace.recording.ended_step import EndedStep
from sluice.trace.recording.event_interner import OVERFLOW_INDEX, EventInterner
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.recording.storage import TraceFiles, encode_line
from sluice.trace.records.trace import TraceStart
from sluice.trace.settings import TraceSettings

_MAX_RECENT_STEPS = 128
"""Maximum number of steps whose detail is kept until the next flush: times of events, and scalars
that are not kept in the history. If a program makes more steps, the detail of the earlier steps is
dropped."""

_MAX_DETAIL_RECORDS = 1024
"""Maximum number of other records of detail that are kept until the next flush. If more are added,
the earliest are dropped."""

ScalarsRow = tuple[
    int, list[Tensor | float], list[tuple[int, Tensor | float, float]], Tensor | None, bool
]
"""Scalars of one step: step, losses, clips (optimizer, norm, maximum norm), loss scale, and whether
the row is kept in the history."""

_NUM_STEP_FIELDS = 6
"""Number of fields of a row in ``_step_rows``."""

_NUM_SCALARS_FIELDS = 5
"""Number of fields of a row in ``_recent_scalars``."""


def _iter_rows(flat: Iterable[Any], num_fields: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a flat sequence, given the number of fields of a row."""
    return zip(*[iter(flat)] * num_fields, strict=True)


class Recorder:
    """Collects records and writes them at every flush.

    Args:
        folder: Folder of this process; created at the first flush.
        settings: Limits of time and disk space.
        describe: Returns the first record of the trace, which describes this process. Called when
            the folder is created, because the rank of the process may be unknown before.
        clock: Monotonic time [ns].
    """

    def __init__(
        self,
        folder: Path,
        settings: TraceSettings,
        describe: Callable[[], TraceStart],
        *,
        clock: Callable[[], int],
    ) -> None:
        self.folder = folder
        self._settings, self._describe, self._clock = settings, describe, clock
        self.interner = EventInterner()
        self._files: TraceFiles | None = None
        self._began_ns = clock()
        self.flush_due_ns = self._began_ns
        """Time of the next flush [ns]; the first is due at the first step."""
        self._history_lines: list[bytes] = []
        self._kept_statistics: list[Record] = []
        """Statistics that are kept in the history, and are not written yet."""
        self._detail_records: deque[tuple[str, Record]] = deque(maxlen=_MAX_DETAIL_RECORDS)
        """Name and record of the recent detail that is not written yet."""
        self._sequence_counts: dict[int, list[int]] = {}
        """First step, last step and number of steps since the last flush, by sequence index. An
        unfinished step has the key -1 - index."""
        # Rows are stored flat: a container per row would trigger the garbage collector more often.
        self._step_rows: deque[Any] = deque(maxlen=_MAX_RECENT_STEPS * _NUM_STEP_FIELDS)
        """Rows of steps: step, sequence index, positions of the events that the sequence stores,
        times of all events of the step, end time, and end time of the previous step. The sequence
        stores a repeated block of events only once."""
        self._recent_scalars: deque[Any] = deque(maxlen=_MAX_RECENT_STEPS * _NUM_SCALARS_FIELDS)
        """Rows of scalars that are only recent detail, with the fields of ``ScalarsRow``."""
        self._kept_scalars: list[ScalarsRow] = []
        """Rows of scalars that are kept in the history, and are not read yet."""
        self._resolved_scalars: list[tuple[list[Any], bool]] = []
        """Rows whose values were read from the device, and whether they are kept in the history."""
        self.learning_rates: list[tuple[int, int, list[float]]] = []
        """Changed learning rates that are not written yet: step, optimizer, learning rates."""
        self._scalars_sampler = LogSpacedSampler(settings.history_rows)
        self._statistics_sampler = LogSpacedSampler(settings.history_rows)
        self.device_reads = BatchedDeviceReads()
        self.num_overflow_steps = 0
        """Number of steps whose sequence was not recorded, because there were too many distinct
        sequences."""

    def write(self, name: str, record: Record) -> None:
        """Add a record to the history, which covers the whole run."""
        self._history_lines.append(encode_line(name, record.model_dump()))

    def write_detail(self, name: str, record: Record) -> None:
        """Add a record to the recent detail, in which it is kept until newer records replace it."""
        self._detail_records.append((name, record))

    def write_statistics(self, record: Record) -> None:
        """Add statistics to the recent detail, and a sample of them to the history."""
        self.write_detail("measures", record)  # the stored name of statistics
        if self._statistics_sampler.advance():
            self._kept_statistics.append(record)

    def add_steps(self, steps: Iterable[EndedStep]) -> None:
        """Add the data of ended steps."""
        for step in steps:
            sequence_index, kept_positions = self.interner.intern_step(
                step.events[::2], step.thread
            )
            # If ``ended_ns`` is 0, the object describes several repeated steps. Its ``losses`` then
            # alternate between step numbers and lists of losses.
            is_repeated = not step.ended_ns
            num_steps = len(step.losses) // 2 if is_repeated else 1
            count_row = self._sequence_counts.get(sequence_index)
            if count_row is None:
                first_step = step.losses[0] if is_repeated else step.step
                self._sequence_counts[sequence_index] = [first_step, step.step, num_steps]
            else:
                count_row[1] = step.step
                count_row[2] += num_steps
            if sequence_index == OVERFLOW_INDEX:
                self.num_overflow_steps += num_steps
            if is_repeated:
                self._add_repeats(step.losses)
                continue
            # An array, because the garbage collector would have to traverse a list.
            times = array("q", step.events[1::2])
            self._step_rows += (
                step.step, sequence_index, kept_positions, times, step.ended_ns, step.began_ns
            )  # fmt: skip
            if step.losses or step.clips or step.scale is not None:
                is_kept = self._scalars_sampler.advance()
                scalars = (step.step, step.losses, step.clips, step.scale, is_kept)
                if is_kept:
                    self._kept_scalars.append(scalars)
                else:
                    self._recent_scalars += scalars

    def _add_repeats(self, steps_and_losses: Sequence[Any]) -> None:
        """Add the losses of repeated steps: step, its losses, next step, its losses, and so on."""
        sampler = self._scalars_sampler
        are_skipped = sampler.skip_if_none_kept(len(steps_and_losses) // 2)
        for step, losses in _iter_rows(steps_and_losses, 2):
            is_kept = not are_skipped and sampler.advance()
            if is_kept:
                self._kept_scalars.append((step, losses, [], None, is_kept))
            else:
                self._recent_scalars += (step, losses, (), None, is_kept)

    def record_open_events(self, step: int, codes: Sequence[int], thread: int) -> None:
        """Add the events of the unfinished step of a thread at the end of the trace."""
        sequence_index, _ = self.interner.intern_step(codes, thread)
        if sequence_index != OVERFLOW_INDEX:
            self._sequence_counts[-1 - sequence_index] = [step, step, 1]

    def read_device_values(self) -> None:
        """Read all requested values from the devices; see ``BatchedDeviceReads``."""
        self._request_scalars()
        self.device_reads.read()

    def flush(self) -> None:
        """Write all buffered records; scalars only after ``read_device_values`` has read them.

        Raises:
            OSError: The folder cannot be created or written.
        """
        scalars, self._resolved_scalars = self._resolved_scalars, []
        if self._files is None:
            self._files = TraceFiles(
                self.folder,
                recent_bytes=self._settings.recent_bytes,
                history_bytes=self._settings.history_bytes,
            )
            start_line = encode_line("start", self._describe().model_dump())
            self._files.write_history([start_line], is_required=True)
        was_full = self._files.is_full
        self._files.write_history(self._sequence_lines(), is_required=True)
        self._files.write_history(
            [
                *(encode_line("measures", record.model_dump()) for record in self._kept_statistics),
                *_scalars_lines(scalars, is_kept=True),
            ],
            is_required=False,
        )
        self._files.write_history(self._history_lines, is_required=True)
        self._files.write_recent(
            [
                *(encode_line(name, record.model_dump()) for name, record in self._detail_records),
                *self._step_lines(),
                *_scalars_lines(scalars, is_kept=False),
            ]
        )
        if self._files.is_full and not was_full:
            text = (
                f"The history reached its limit of {self._settings.history_bytes:,} bytes. Later "
                "losses, norms and statistics are not kept in the history. Raise history_bytes to "
                "keep more."
            )
            step = self._step_rows[-_NUM_STEP_FIELDS] if self._step_rows else 0
            note = encode_line("note", {"step": step, "kind": "full", "text": text})
            self._files.write_history([note], is_required=True)
        self._history_lines, self._kept_statistics = [], []
        self._detail_records.clear()
        self._step_rows.clear()
        self.flush_due_ns = self._clock() + int(self._settings.flush_s * 1e9)

    def close(self) -> None:
        """Close the files. Records that were not flushed are lost."""
        if self._files is not None:
            self._files.close()

    @property
    def has_records(self) -> bool:
        """Whether steps or history records were written or are buffered."""
        return self._files is not None or bool(self._sequence_counts) or bool(self._history_lines)

    def _sequence_lines(self) -> Iterable[bytes]:
        for index, thread, events in self.interner.unwritten_sequences:
            # "word" and "marks" are the stored names of a sequence and its events.
            yield encode_line("word", {"index": index, "thread": thread, "marks": events})
        self.interner.unwritten_sequences.clear()
        if self._sequence_counts:
            rows = [[key, *count_row] for key, count_row in self._sequence_counts.items()]
            # "order" is the stored name of the sequence counts.
            yield encode_line("order", {"rows": rows})
            self._sequence_counts = {}
        if self.learning_rates:
            yield encode_line("rates", {"rows": self.learning_rates})
            self.learning_rates = []

    def _step_lines(self) -> Iterable[bytes]:
        if self._step_rows:
            trace_began_ns = self._began_ns
            rows = [
                [
                    step,
                    sequence_index,
                    [(times[i] - trace_began_ns) // 1000 for i in kept_positions],
                    (ended_ns - trace_began_ns) // 1000,
                    (began_ns - trace_began_ns) // 1000,
                ]
                for step, sequence_index, kept_positions, times, ended_ns, began_ns in _iter_rows(
                    self._step_rows, _NUM_STEP_FIELDS
                )
                if sequence_index != OVERFLOW_INDEX
            ]
            yield encode_line("steps", {"rows": rows})

    def _request_scalars(self) -> None:
        """Request the values of all buffered scalars, in the order of their steps."""
        recent_rows: Iterator[Any] = _iter_rows(self._recent_scalars, _NUM_SCALARS_FIELDS)
        rows: list[ScalarsRow] = [*recent_rows, *self._kept_scalars]
        rows.sort(key=operator.itemgetter(0))
        self._recent_scalars.clear()
        self._kept_scalars = []
        requested_scalars: list[Tensor | float] = []
        for _, losses, clips, scale, _ in rows:
            requested_scalars += losses
            requested_scalars += [norm for _, norm, _ in clips]
            if scale is not None:
                requested_scalars.append(scale)
        if rows:
            self.device_reads.request(requested_scalars, functools.partial(self._on_scalars, rows))

    def _on_scalars(self, rows: Iterable[ScalarsRow], values: Sequence[float]) -> None:
        """Store rows with the values that were requested for them, in the same order."""
        remaining_values = iter(values)
        for step, losses, clips, scale, is_kept in rows:
            loss_values = list(islice(remaining_values, len(losses)))
            norms = [(index, next(remaining_values), max_norm) for index, _, max_norm in clips]
            row = [step, loss_values, norms, None if scale is None else next(remaining_values)]
            self._resolved_scalars.append((row, is_kept))


def _scalars_lines(scalars: Sequence[tuple[list[Any], bool]], *, is_kept: bool) -> list[bytes]:
    """Return one line with the rows that are, or are not, kept in the history; [] without rows."""
    rows = [row for row, is_row_kept in scalars if is_row_kept == is_kept]
    # "numbers" is the stored name of scalars.
    return [encode_line("numbers", {"rows": rows})] if rows else []
