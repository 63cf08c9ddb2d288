"""Reads the trace of a process that ended, was killed or is still running."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sluice.base.errors import ContractError, StorageError
from sluice.base.settings import Record
from sluice.trace.recording.event_interner import OVERFLOW, decode_event
from sluice.trace.recording.storage import HISTORY, RECENT, workers_file
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
"""Last fields of a row of recent steps. Early versions of Sluice did not write them."""

R = TypeVar("R", bound=Record)
ByStep = TypeVar("ByStep", StepStatistics, StepScalars)


def find_traces(folder: Path) -> tuple[Path, ...]:
    """Return the folders of the traced processes, sorted by rank.

    Args:
        folder: Folder of traces, or folder of one process.

    Raises:
        StorageError: The folder contains no trace.
    """
    if (folder / HISTORY).exists():
        return (folder,)
    histories = sorted(folder.glob(f"*/{HISTORY}"), key=lambda file: file.stat().st_mtime_ns)
    if not histories:
        raise StorageError(
            f"{folder} contains no trace: expected {HISTORY} in a subfolder for each process.",
            cause="The program did not use torch, ended before its first step, or runs Python with "
            "an option that disables PYTHONPATH or sitecustomize (-I, -E, -S).",
            fix="Check the path, or trace the program again and read its output.",
        )
    ranked = [(read_trace(file.parent).start.rank, file.parent) for file in histories]
    return tuple(parent for _, parent in sorted(ranked, key=lambda pair: pair[0]))


def read_trace(folder: Path) -> Trace:
    """Return the trace of one process, up to its last flush.

    An incomplete last line of a file is skipped and counted.

    Raises:
        StorageError: The files do not exist or cannot be read.
        ContractError: A line other than an incomplete last one is damaged, the start record is
            missing, or a newer version of Sluice wrote the trace.
    """
    lines = _Lines(folder)
    history = list(lines.of(HISTORY))
    recent = [line for name in RECENT for line in lines.of(name)]
    starts = [line for line in history if line["record"] == "start"]
    if not starts or starts[0].get("version", VERSION + 1) > VERSION:
        raise ContractError(
            f"{folder / HISTORY} must begin with a start record of version {VERSION} or older; got "
            f"{starts[0].get('version') if starts else 'none'}.",
            cause="A newer version of Sluice wrote the trace, or its first line is missing.",
            fix="Read the trace with the version of Sluice that wrote it.",
        )
    all_lines = [*history, *recent]
    try:
        ends = _records(TraceEnd, history, "end")
        sequences, positions, num_overflow_steps = _step_sequences(history)
        return Trace(
            start=_record(TraceStart, starts[0]),
            end=ends[-1] if ends else None,
            sequences=sequences,
            memberships=_records(Membership, history, "membership"),
            schedulers=_records(SchedulerRecord, history, "scheduler"),
            loaders=_records(LoaderRecord, history, "loader"),
            statistics=_by_step(_records(StepStatistics, all_lines, "measures")),
            scalars=_by_step(
                _step_scalars(*row)
                for line in all_lines
                if line["record"] == "numbers"
                for row in line["rows"]
            ),
            batches=tuple(sorted(_records(BatchRecord, recent, "batch"), key=lambda b: b.step)),
            epochs=_records(EpochRecord, history, "epoch"),
            random_states=tuple(
                sorted(_records(RandomStateRecord, recent, "random"), key=lambda r: r.step)
            ),
            loads=_records(StateLoadRecord, history, "load"),
            saves=_records(StateSaveRecord, history, "save"),
            reads=_records(FileReadRecord, history, "read"),
            rates=tuple(
                LearningRateRecord(step=step, optimizer=optimizer, rates=rates)
                for line in history
                if line["record"] == "rates"
                for step, optimizer, rates in line["rows"]
            ),
            workers=_records(WorkerRandomnessRecord, lines.of_workers(), "worker"),
            wrappers=_records(DataParallelRecord, history, "wrapper"),
            rank_weights=_records(RankWeightsRecord, history, "parallel"),
            values=_records(ParameterValuesRecord, history, "value"),
            nonfinite_gradients=_records(NonFiniteGradientRecord, history, "gradient"),
            corrupted_weights=_records(CorruptedWeightsRecord, history, "spoiled"),
            forward_passes=_records(ForwardPassRecord, history, "flow"),
            padding_masks=_records(PaddingMaskRecord, history, "mask"),
            probes=_records(ProbeRecord, history, "probe"),
            losses=_records(LossRecord, history, "loss"),
            evaluations=_records(EvaluationPassRecord, history, "evaluation"),
            inputs=_records(InputRecord, history, "input"),
            rows=_records(RowsRecord, history, "rows"),
            target_samples=_records(TargetSampleRecord, history, "pair"),
            nonfinite_tensors=_records(NonFiniteTensorRecord, history, "bad_numbers"),
            out_of_range_indices=_records(OutOfRangeIndexRecord, history, "ids"),
            notes=_records(TraceNote, history, "note"),
            recent_steps=_recent_steps(recent, positions),
            num_steps_without_sequence=num_overflow_steps,
            truncated_lines=lines.num_truncated,
        )
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"{folder} contains a damaged record ({error}).",
            cause="A file was changed after it was written.",
            fix="Trace the program again.",
        ) from error


class _Lines:
    """Lines of the trace files, and the number of incomplete ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_truncated = 0

    def of_workers(self) -> Iterator[dict[str, Any]]:
        """Return the lines that DataLoader workers wrote; most programs have none."""
        path = workers_file(self._folder)
        return self._read(path) if path.exists() else iter(())

    def of(self, name: str) -> Iterator[dict[str, Any]]:
        return self._read(self._folder / name)

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"Cannot read {path} ({error.strerror or error}).",
                fix="Pass the folder of one traced process.",
            ) from error
        *complete_lines, incomplete_line = content.split(b"\n")
        self.num_truncated += bool(incomplete_line)
        for number, line in enumerate(complete_lines, start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or "record" not in record:
                raise ContractError(
                    f"{path}, line {number}: the line must be one JSON object with the field "
                    f"'record', got {line[:60]!a}.",
                    cause="The file was changed after it was written.",
                    fix="Trace the program again.",
                )
            yield record


def _record(cls: type[R], line: dict[str, Any]) -> R:
    return cls.model_validate({key: value for key, value in line.items() if key != "record"})


def _records(cls: type[R], lines: Iterable[dict[str, Any]], record: str) -> tuple[R, ...]:
    return tuple(_record(cls, line) for line in lines if line["record"] == record)


def _step_scalars(
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


def _step_sequences(
    history: Iterable[dict[str, Any]],
) -> tuple[tuple[StepSequence, ...], dict[int, int], int]:
    """Return the recorded sequences, and the number of steps without a recorded sequence.

    Returns:
        The sequences sorted by their first step; the position of each among them, by its stored
        index; and the number of steps whose sequence was not recorded, because there were too many
        distinct ones.
    """
    events_by_index: dict[int, dict[str, Any]] = {}
    counts: dict[int, tuple[int, int, int]] = {}
    for line in history:
        if line["record"] == "word":
            events_by_index[line["index"]] = line
        elif line["record"] == "order":
            for key, first, last, count in line["rows"]:
                known_first, _, known_count = counts.get(key, (first, last, 0))
                counts[key] = known_first, last, known_count + count
    _, _, num_overflow_steps = counts.pop(OVERFLOW, (0, 0, 0))
    sequences: list[StepSequence] = []
    positions: dict[int, int] = {}
    for key, (first, last, count) in sorted(counts.items(), key=lambda item: item[1][0]):
        is_open = key < 0
        line = events_by_index[-1 - key if is_open else key]
        if not is_open:
            positions[key] = len(sequences)
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


def _recent_steps(
    lines: Iterable[dict[str, Any]], positions: dict[int, int]
) -> tuple[RecentStep, ...]:
    steps = [
        RecentStep(
            step=step,
            sequence=positions[sequence],
            times_us=tuple(times),
            **dict(zip(_OPTIONAL_STEP_FIELDS, optional, strict=False)),
        )
        for line in lines
        if line["record"] == "steps"
        for step, sequence, times, *optional in line["rows"]
        if sequence in positions
    ]
    return tuple(sorted(steps, key=lambda recent: recent.step))


def _by_step(records: Iterable[ByStep]) -> tuple[ByStep, ...]:
    """Return records sorted by step. Of records of the same step in two files, keep the last."""
    by_step = {record.step: record for record in records}
    return tuple(by_step[step] for step in sorted(by_step))
