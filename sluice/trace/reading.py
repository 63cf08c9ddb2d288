"""Reads a trace back: of a process that ended, was killed, or runs still."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sluice.base.errors import ContractError, StorageError
from sluice.base.settings import Record
from sluice.trace.evidence.batches import (
    BatchPrint,
    EpochPrint,
    LoaderFact,
    LoadFact,
    RandomPrint,
)
from sluice.trace.evidence.flow import FlowFact, MaskFact, ProbeFact
from sluice.trace.evidence.inputs import BadNumbersFact, IdFact, InputFact, PairFact, RowsFact
from sluice.trace.evidence.losses import EvaluationFact, LossFact
from sluice.trace.evidence.measures import StepMeasures, StepNumbers
from sluice.trace.evidence.membership import Membership
from sluice.trace.evidence.order import RecentStep, StepWord
from sluice.trace.evidence.surroundings import (
    ParallelFact,
    RateFact,
    ReadFact,
    SaveFact,
    WorkerFact,
    WrapperFact,
)
from sluice.trace.evidence.trace import VERSION, End, Note, SchedulerFact, Start, Trace
from sluice.trace.evidence.values import GradientFact, SpoiledFact, ValueFact
from sluice.trace.storage import HISTORY, RECENT, workers_file
from sluice.trace.words import OVERFLOW, as_mark

_ENDS = ("ended_us", "began_us")
"""What early versions did not write of a recent step."""

R = TypeVar("R", bound=Record)
ByStep = TypeVar("ByStep", StepMeasures, StepNumbers)


def find_traces(out: Path) -> tuple[Path, ...]:
    """Return the folders of the processes that were traced, the first rank first.

    Args:
        out: A folder of traces, or that of one process.

    Raises:
        StorageError: There is no trace.
    """
    if (out / HISTORY).exists():
        return (out,)
    folders = sorted(out.glob(f"*/{HISTORY}"), key=lambda file: file.stat().st_mtime_ns)
    if not folders:
        raise StorageError(
            f"A folder of traces holds a {HISTORY} in a folder for each process; {out} has none.",
            cause="The program did not use torch, ended before its first step, or was started with "
            "a Python that ignores its environment (-I, -E, -S).",
            fix="Check the path, or trace the program again and look at its own output.",
        )
    ranked = [(read_trace(file.parent).start.rank, file.parent) for file in folders]
    return tuple(folder for _, folder in sorted(ranked, key=lambda pair: pair[0]))


def read_trace(folder: Path) -> Trace:
    """Return the evidence of one process, up to its last flush.

    A torn last line of a file is left out and counted.

    Raises:
        StorageError: The files are not there or cannot be read.
        ContractError: A line that is not the last one is damaged, or the trace is of a newer
            version.
    """
    lines = _Lines(folder)
    kept = list(lines.of(HISTORY))
    recent = [line for name in RECENT for line in lines.of(name)]
    starts = [line for line in kept if line["record"] == "start"]
    if not starts or starts[0].get("version", VERSION + 1) > VERSION:
        raise ContractError(
            f"{folder / HISTORY} must begin with a start of version {VERSION} or older; got "
            f"{starts[0].get('version') if starts else 'none'}.",
            cause="It was written by another version of Sluice, or its first line is torn.",
            fix="Read it with the version that wrote it.",
        )
    both = [*kept, *recent]
    try:
        ends = _all(End, kept, "end")
        words, places, num_untold = _words(kept)
        return Trace(
            start=_record(Start, starts[0]),
            end=ends[-1] if ends else None,
            words=words,
            memberships=_all(Membership, kept, "membership"),
            schedulers=_all(SchedulerFact, kept, "scheduler"),
            loaders=_all(LoaderFact, kept, "loader"),
            measures=_by_step(_all(StepMeasures, both, "measures")),
            numbers=_by_step(
                _numbers(*row)
                for line in both
                if line["record"] == "numbers"
                for row in line["rows"]
            ),
            batches=tuple(sorted(_all(BatchPrint, recent, "batch"), key=lambda b: b.step)),
            epochs=_all(EpochPrint, kept, "epoch"),
            randoms=tuple(sorted(_all(RandomPrint, recent, "random"), key=lambda r: r.step)),
            loads=_all(LoadFact, kept, "load"),
            saves=_all(SaveFact, kept, "save"),
            reads=_all(ReadFact, kept, "read"),
            rates=tuple(
                RateFact(step=step, optimizer=optimizer, rates=rates)
                for line in kept
                if line["record"] == "rates"
                for step, optimizer, rates in line["rows"]
            ),
            workers=_all(WorkerFact, lines.of_workers(), "worker"),
            wrappers=_all(WrapperFact, kept, "wrapper"),
            parallels=_all(ParallelFact, kept, "parallel"),
            values=_all(ValueFact, kept, "value"),
            gradients=_all(GradientFact, kept, "gradient"),
            spoiled=_all(SpoiledFact, kept, "spoiled"),
            flows=_all(FlowFact, kept, "flow"),
            masks=_all(MaskFact, kept, "mask"),
            probes=_all(ProbeFact, kept, "probe"),
            losses=_all(LossFact, kept, "loss"),
            evaluations=_all(EvaluationFact, kept, "evaluation"),
            inputs=_all(InputFact, kept, "input"),
            rows=_all(RowsFact, kept, "rows"),
            pairs=_all(PairFact, kept, "pair"),
            bad_numbers=_all(BadNumbersFact, kept, "bad_numbers"),
            ids=_all(IdFact, kept, "ids"),
            notes=_all(Note, kept, "note"),
            recent=_recent(recent, places),
            num_untold=num_untold,
            torn_lines=lines.torn,
        )
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"{folder} must hold a trace; a record in it is not one ({error}).",
            cause="A file was changed after it was written.",
            fix="Trace the program again.",
        ) from error


class _Lines:
    """The lines of the files, and how many were torn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.torn = 0

    def of_workers(self) -> Iterator[dict[str, Any]]:
        """Return what workers of loaders wrote beside the folder; most programs have none."""
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
                fix="Give the folder of one traced process.",
            ) from error
        *whole, last = content.split(b"\n")
        self.torn += bool(last)
        for number, line in enumerate(whole, start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ContractError(
                    f"{path}, line {number}: the line must be one JSON object, got {line[:60]!a}.",
                    cause="The file was changed after it was written.",
                    fix="Trace the program again.",
                ) from error


def _record(cls: type[R], line: dict[str, Any]) -> R:
    return cls.model_validate({key: value for key, value in line.items() if key != "record"})


def _all(cls: type[R], lines: Iterable[dict[str, Any]], record: str) -> tuple[R, ...]:
    return tuple(_record(cls, line) for line in lines if line["record"] == record)


def _numbers(
    step: int, losses: list[float], clips: list[list[float]], scale: float | None
) -> StepNumbers:
    return StepNumbers.model_validate(
        {
            "step": step,
            "losses": losses,
            "clips": [
                {"optimizer": index, "norm": norm, "max_norm": most} for index, norm, most in clips
            ],
            "scale": scale,
        }
    )


def _words(kept: Iterable[dict[str, Any]]) -> tuple[tuple[StepWord, ...], dict[int, int], int]:
    """Return the words in the order of their first steps, the place of each, and steps without."""
    spelled: dict[int, dict[str, Any]] = {}
    counts: dict[int, tuple[int, int, int]] = {}
    for line in kept:
        if line["record"] == "word":
            spelled[line["index"]] = line
        elif line["record"] == "order":
            for key, first, last, count in line["rows"]:
                before = counts.get(key, (first, last, 0))
                counts[key] = before[0], last, before[2] + count
    _, _, num_untold = counts.pop(OVERFLOW, (0, 0, 0))
    words: list[StepWord] = []
    places: dict[int, int] = {}
    for key, (first, last, count) in sorted(counts.items(), key=lambda item: item[1][0]):
        is_open = key < 0
        line = spelled[-1 - key if is_open else key]
        if not is_open:
            places[key] = len(words)
        words.append(
            StepWord(
                marks=tuple(map(as_mark, line["marks"])),
                thread=line["thread"],
                first_step=first,
                last_step=last,
                count=count,
                is_open=is_open,
            )
        )
    return tuple(words), places, num_untold


def _recent(lines: Iterable[dict[str, Any]], places: dict[int, int]) -> tuple[RecentStep, ...]:
    steps = [
        RecentStep(
            step=step,
            word=places[word],
            times_us=tuple(times),
            **dict(zip(_ENDS, ends, strict=False)),
        )
        for line in lines
        if line["record"] == "steps"
        for step, word, times, *ends in line["rows"]
        if word in places
    ]
    return tuple(sorted(steps, key=lambda recent: recent.step))


def _by_step(facts: Iterable[ByStep]) -> tuple[ByStep, ...]:
    """Return facts in the order of their steps; what stands in two files is told once."""
    found = {fact.step: fact for fact in facts}
    return tuple(found[step] for step in sorted(found))
