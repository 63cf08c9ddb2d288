"""Reads the trace of a process that ended, was killed or is still running."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sluice.base.errors import ContractError, StorageError
from sluice.base.settings import Record
from sluice.trace.recording.event_interner import OVERFLOW_INDEX, decode_event
from sluice.trace.recording.storage import HISTORY_FILE, RECENT_FILES, workers_file
from sluice.trace.records.batches import (
    BatchRecord,
    EpochRecord,
    LoaderRecord,
    RandomStateRecord,
    StateLoadRecord,
)
from sluice.trace.records.environment import (
    DataParallelRecord,
    FileReadRecord,
    LearningRateRecord,
    RankWeightsRecord,
    StateSaveRecord,
    WorkerRandomnessRecord,
)
from sluice.trace.records.events import RecentStep, StepSequence
from sluice.trace.records.forward_passes import ForwardPassRecord, PaddingMaskRecord, ProbeRecord
from sluice.trace.records.inputs import (
    InputRecord,
    NonFiniteTensorRecord,
    OutOfRangeIndexRecord,
    RowsRecord,
    TargetSampleRecord,
)
from sluice.trace.records.losses import EvaluationPassRecord, LossRecord
from sluice.trace.records.membership import Membership
from sluice.trace.records.parameter_values import (
    CorruptedWeightsRecord,
    NonFiniteGradientRecord,
    ParameterValuesRecord,
)
from sluice.trace.records.step_statistics import StepScalars, StepStatistics
from sluice.trace.records.trace import (
    VERSION,
    SchedulerRecord,
    Trace,
    TraceEnd,
    TraceNote,
    TraceStart,
)

_OPTIONAL_STEP_FIELDS = ("ended_us", "began_us")
"""Last fields of a row of recent steps. Early versions of Sluice did not write these fields."""

RecordT = TypeVar("RecordT", bound=Record)
StepRecordT = TypeVar("StepRecordT", StepStatistics, StepScalars)


def find_traces(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the traced processes, sorted by rank, then by time of the last write.

    Args:
        folder: Folder of traces, or folder of one process.

    Raises:
        StorageError: The folder contains no trace.
        ContractError: One of several traces is damaged.
    """
    if (folder / HISTORY_FILE).exists():
        return (folder,)
    histories = sorted(folder.glob(f"*/{HISTORY_FILE}"), key=lambda file: file.stat().st_mtime_ns)
    if not histories:
        raise StorageError(
            f"{folder} contains no trace: expected {HISTORY_FILE} in a subfolder for each process.",
            cause="The program did not use torch, ended before its first step, or runs Python with "
            "an option that disables PYTHONPATH or sitecustomize (-I, -E, -S).",
            fix="Check the path, or trace the program again and read its output.",
        )
    folders = tuple(file.parent for file in histories)
    if len(folders) == 1:  # nothing to sort, and a large trace takes seconds to read
        return folders
    # The sort is stable: processes of the same rank remain sorted by time.
    return tuple(sorted(folders, key=lambda process_folder: read_trace(process_folder).start.rank))


def read_trace(folder: Path) -> Trace:
    """Return the trace of one process, up to its last flush.

    An incomplete last line of a file is skipped and counted.

    Raises:
        StorageError: The files do not exist or cannot be read.
        ContractError: A complete line is damaged, the start record is missing, or a newer version
            of Sluice wrote the trace.
    """
    reader, workers_path = _LineReader(), workers_file(folder)
    # The file exists only if the program has DataLoader workers.
    worker_lines: Iterable[dict[str, Any]] = (
        reader.read(workers_path) if workers_path.exists() else ()
    )
    history_lines = list(reader.read(folder / HISTORY_FILE))
    recent_lines = [line for name in RECENT_FILES for line in reader.read(folder / name)]
    start_lines = [line for line in history_lines if line["record"] == "start"]
    if not start_lines or start_lines[0].get("version", VERSION + 1) > VERSION:
        raise ContractError(
            f"{folder / HISTORY_FILE} must begin with a start record of version {VERSION} or "
            f"older; got {start_lines[0].get('version') if start_lines else 'none'}.",
            cause="A newer version of Sluice wrote the trace, or its first line is missing.",
            fix="Read the trace with the version of Sluice that wrote it, or trace the program "
            "again.",
        )
    all_lines = [*history_lines, *recent_lines]
    try:
        # The stored names of some kinds of records differ from the field names of Trace.
        end_records = _parse_records(TraceEnd, history_lines, "end")
        sequences, positions, num_overflow_steps = _read_step_sequences(history_lines)
        return Trace(
            start=_parse_record(TraceStart, start_lines[0]),
            end=end_records[-1] if end_records else None,
            sequences=sequences,
            memberships=_parse_records(Membership, history_lines, "membership"),
            schedulers=_parse_records(SchedulerRecord, history_lines, "scheduler"),
            loaders=_parse_records(LoaderRecord, history_lines, "loader"),
            statistics=_sort_by_step(_parse_records(StepStatistics, all_lines, "measures")),
            scalars=_sort_by_step(
                _parse_scalars_row(*row)
                for line in all_lines
                if line["record"] == "numbers"
                for row in line["rows"]
            ),
            batches=tuple(
                sorted(_parse_records(BatchRecord, recent_lines, "batch"), key=lambda b: b.step)
            ),
            epochs=_parse_records(EpochRecord, history_lines, "epoch"),
            random_states=tuple(
                sorted(
                    _parse_records(RandomStateRecord, recent_lines, "random"), key=lambda r: r.step
                )
            ),
            loads=_parse_records(StateLoadRecord, history_lines, "load"),
            saves=_parse_records(StateSaveRecord, history_lines, "save"),
            reads=_parse_records(FileReadRecord, history_lines, "read"),
            rates=tuple(
                LearningRateRecord(step=step, optimizer=optimizer, rates=rates)
                for line in history_lines
                if line["record"] == "rates"
                for step, optimizer, rates in line["rows"]
            ),
            workers=_parse_records(WorkerRandomnessRecord, worker_lines, "worker"),
            wrappers=_parse_records(DataParallelRecord, history_lines, "wrapper"),
            rank_weights=_parse_records(RankWeightsRecord, history_lines, "parallel"),
            parameter_values=_parse_records(ParameterValuesRecord, history_lines, "value"),
            nonfinite_gradients=_parse_records(NonFiniteGradientRecord, history_lines, "gradient"),
            corrupted_weights=_parse_records(CorruptedWeightsRecord, history_lines, "spoiled"),
            forward_passes=_parse_records(ForwardPassRecord, history_lines, "flow"),
            padding_masks=_parse_records(PaddingMaskRecord, history_lines, "mask"),
            probes=_parse_records(ProbeRecord, history_lines, "probe"),
            losses=_parse_records(LossRecord, history_lines, "loss"),
            evaluations=_parse_records(EvaluationPassRecord, history_lines, "evaluation"),
            inputs=_parse_records(InputRecord, history_lines, "input"),
            rows=_parse_records(RowsRecord, history_lines, "rows"),
            target_samples=_parse_records(TargetSampleRecord, history_lines, "pair"),
            nonfinite_tensors=_parse_records(NonFiniteTensorRecord, history_lines, "bad_numbers"),
            out_of_range_indices=_parse_records(OutOfRangeIndexRecord, history_lines, "ids"),
            notes=_parse_records(TraceNote, history_lines, "note"),
            recent_steps=_read_recent_steps(recent_lines, positions),
            num_steps_without_sequence=num_overflow_steps,
            num_truncated_files=reader.num_truncated_files,
        )
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"{folder} contains a damaged record ({error}).",
            cause="A file was changed after it was written.",
            fix="Trace the program again.",
        ) from error


class _LineReader:
    """Reads the lines of trace files, and counts files with an incomplete last line."""

    def __init__(self) -> None:
        self.num_truncated_files = 0

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"Cannot read {path} ({error.strerror or error}).",
                fix="Pass the folder of one traced process.",
            ) from error
        *complete_lines, incomplete_line = content.split(b"\n")
        self.num_truncated_files += bool(incomplete_line)
        for line_number, line in enumerate(complete_lines, start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or "record" not in record:
                raise ContractError(
                    f"{path}, line {line_number}: the line must be one JSON object with the field "
                    f"'record', got {line[:60]!a}.",
                    cause="The file was changed after it was written.",
                    fix="Trace the program again.",
                )
            yield record


def _parse_record(cls: type[RecordT], line: dict[str, Any]) -> RecordT:
    return cls.model_validate({key: value for key, value in line.items() if key != "record"})


def _parse_records(
    cls: type[RecordT], lines: Iterable[dict[str, Any]], name: str
) -> tuple[RecordT, ...]:
    return tuple(_parse_record(cls, line) for line in lines if line["record"] == name)


def _parse_scalars_row(
    step: int, losses: list[float], clips: list[list[float]], scale: float | None
) -> StepScalars:
    return StepScalars.model_validate(
        {
            "step": step,
            "losses": losses,
            "clips": [
                {"optimizer": index, "norm": norm, "max_norm": max_norm}
                for index, norm, max_norm in clips
            ],
            "scale": scale,
        }
    )


def _read_step_sequences(
    history_lines: Iterable[dict[str, Any]],
) -> tuple[tuple[StepSequence, ...], dict[int, int], int]:
    """Read the event sequences of the steps.

    Returns:
        sequences: The sequences, sorted by first step. An open sequence contains the events after
            the last step of a thread.
        positions: Positions in ``sequences`` of the sequences that are not open, by stored index.
        num_overflow_steps: Number of steps whose sequence was not recorded, because there were too
            many distinct sequences.
    """
    line_by_index: dict[int, dict[str, Any]] = {}
    counts: dict[int, tuple[int, int, int]] = {}  # first step, last step, number of steps
    # "word", "order" and "marks" are the stored names of a sequence, its counts and its events.
    for line in history_lines:
        if line["record"] == "word":
            line_by_index[line["index"]] = line
        elif line["record"] == "order":
            for stored_index, first, last, count in line["rows"]:
                earlier_first, _, earlier_count = counts.get(stored_index, (first, last, 0))
                counts[stored_index] = earlier_first, last, earlier_count + count
    _, _, num_overflow_steps = counts.pop(OVERFLOW_INDEX, (0, 0, 0))
    sequences: list[StepSequence] = []
    positions: dict[int, int] = {}
    for stored_index, (first, last, count) in sorted(counts.items(), key=lambda item: item[1][0]):
        is_open = stored_index < 0  # the stored index is then -1 - index
        line = line_by_index[-1 - stored_index if is_open else stored_index]
        if not is_open:
            positions[stored_index] = len(sequences)
        sequences.append(
            StepSequence(
                events=tuple(map(decode_event, line["marks"])),
                thread=line["thread"],
                first_step=first,
                last_step=last,
                count=count,
                is_open=is_open,
            )
        )
    return tuple(sequences), positions, num_overflow_steps


def _read_recent_steps(
    lines: Iterable[dict[str, Any]], positions: dict[int, int]
) -> tuple[RecentStep, ...]:
    steps = [
        RecentStep(
            step=step,
            sequence=positions[sequence],
            times_us=tuple(times),
            **dict(zip(_OPTIONAL_STEP_FIELDS, optional_times, strict=False)),
        )
        for line in lines
        if line["record"] == "steps"
        for step, sequence, times, *optional_times in line["rows"]
        if sequence in positions
    ]
    return tuple(sorted(steps, key=lambda step: step.step))


def _sort_by_step(records: Iterable[StepRecordT]) -> tuple[StepRecordT, ...]:
    """Sort records by step. If two files contain the same step, only the last record is kept."""
    by_step = {record.step: record for record in records}
    return tuple(by_step[step] for step in sorted(by_step))
