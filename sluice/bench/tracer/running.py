"""Runs the programs of the fault benchmark, each in separate processes.

The processes are forked from a server process that has already imported torch, which saves time.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Literal

import torch

from sluice.base.errors import StorageError
from sluice.base.settings import Record
from sluice.bench.planted.scratch import scratch_folder
from sluice.bench.tracer.baselines import MonitorRecord, find_alarms
from sluice.bench.tracer.case import CaseSetup, FaultCase, HealthyCase, NetName
from sluice.bench.tracer.overhead import weights_digest
from sluice.bench.tracer.result import ReportedCause, RunResult
from sluice.bench.tracer.watching import AnomalyFound, HookMonitor, monitored
from sluice.trace.attach import traced
from sluice.trace.report.trace_report import report_traces
from sluice.trace.settings import TraceSettings

LIMIT_S = 180.0
"""Time limit of one execution of a program [s]. Most executions take one or two seconds."""

Mode = Literal["traced", "untraced", "monitored", "monitored without anomaly mode"]
"""What records a program. ``traced``: the tracer. ``untraced``: nothing. ``monitored``: the hooks
of the baselines, and autograd's anomaly mode."""

_PRELOADED_MODULES = (
    "torch._dynamo",  # the first step of an optimizer imports this module
    "sklearn.datasets",
    "sluice.cli.app",  # every process imports the main program again
    "sluice.bench.tracer.running",
    "sluice.bench.tracer.faults.library",
    "sluice.bench.tracer.healthy.library",
)
"""Modules that the server process imports before it forks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One program to run, with one network and one seed."""

    case: FaultCase | HealthyCase
    net: NetName
    seed: int
    has_fault: bool

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.case.num_ranks if isinstance(self.case, FaultCase) else 1

    @property
    def may_raise(self) -> bool:
        """Whether the fault ends the program with an exception."""
        return isinstance(self.case, FaultCase) and self.case.raises and self.has_fault


class _Outcome(Record):
    """Outcome of one process, which the process stores for the main process."""

    exception: str
    """Type and message of the exception that ended the program; empty without an exception."""
    digest: str
    """Digest of the final weights; empty if the program did not end normally."""
    cpu_s: float
    record: MonitorRecord | None = None
    """Record of the hooks; None if the program ran without the hooks of the baselines."""
    anomaly_step: int | None = None
    """Step at which anomaly mode stopped the program; None if anomaly mode stopped nothing."""


def plan_runs(
    faults: Sequence[FaultCase],
    healthy: Sequence[HealthyCase],
    *,
    nets: Sequence[NetName],
    seeds: Sequence[int],
    more_seeds: Sequence[int],
) -> tuple[BenchmarkRun, ...]:
    """Return all runs: each fault case with and without its fault, and each healthy program.

    Args:
        faults: Fault cases.
        healthy: Healthy cases.
        nets: Networks. A case runs with those of its own networks that are also listed here.
        seeds: Seeds of all programs.
        more_seeds: Additional seeds, only for the healthy cases.
    """
    runs = [
        BenchmarkRun(case=case, net=net, seed=seed, has_fault=has_fault)
        for case in faults
        for net in case.nets
        if net in nets
        for seed in seeds
        for has_fault in (True, False)
    ]
    runs += [
        BenchmarkRun(case=case, net=net, seed=seed, has_fault=False)
        for case in healthy
        for net in case.nets
        if net in nets
        for seed in (*seeds, *more_seeds)
    ]
    return tuple(runs)


def execute_runs(
    runs: Sequence[BenchmarkRun],
    folder: Path,
    *,
    workers: int,
    with_baselines: bool,
    checks_bits: bool,
    limit_s: float = LIMIT_S,
) -> Iterator[RunResult]:
    """Yield the result of each run as soon as the run has ended.

    Args:
        runs: The runs to execute.
        folder: Folder in which each run gets a temporary folder for its traces and files.
        workers: Number of parallel runs.
        with_baselines: Run each program once more, with the hooks of the baselines.
        checks_bits: Run each program once more without the tracer, and compare the final weights.
        limit_s: Time limit of each execution of a program [s]. A run that exceeds the limit fails.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED_MODULES))
    with ThreadPoolExecutor(workers) as pool:
        futures = [
            pool.submit(
                _run_in_scratch,
                run,
                folder,
                with_baselines=with_baselines,
                checks_bits=checks_bits,
                limit_s=limit_s,
            )
            for run in runs
        ]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _run_in_scratch(
    run: BenchmarkRun, parent: Path, *, with_baselines: bool, checks_bits: bool, limit_s: float
) -> RunResult:
    with scratch_folder(parent) as folder:
        return _run_in_all_modes(
            run,
            folder,
            with_baselines=with_baselines,
            checks_bits=checks_bits,
            limit_s=limit_s,
        )


def _run_in_all_modes(
    run: BenchmarkRun, folder: Path, *, with_baselines: bool, checks_bits: bool, limit_s: float
) -> RunResult:
    outcomes, failure = _run_processes(run, "traced", folder / "traced", limit_s)
    result = _build_result(run, folder / "traced" / "traces", outcomes, failure)
    if result.failed:
        return result
    update: dict[str, object] = {}
    if checks_bits:
        untraced_outcomes, failure = _run_processes(run, "untraced", folder / "untraced", limit_s)
        untraced_digests = [outcome.digest for outcome in untraced_outcomes]
        traced_digests = [outcome.digest for outcome in outcomes]
        # A program that raised an exception has no final weights to compare.
        has_same_bits = untraced_digests == traced_digests if all(traced_digests) else None
        update |= {"has_same_bits": has_same_bits, "failed": failure}
    if with_baselines:
        alarms, failure = _baseline_alarms(run, folder, limit_s)
        update |= {"alarms": alarms, "failed": str(update.get("failed", "")) or failure}
    return result.model_copy(update=update)


def _build_result(
    run: BenchmarkRun, traces_folder: Path, outcomes: Sequence[_Outcome], failure: str
) -> RunResult:
    cpu_s = max((outcome.cpu_s for outcome in outcomes), default=0.0)
    answers: list[ReportedCause] = []
    notes: list[str] = []
    steps = 0
    try:
        for report in report_traces(traces_folder):
            reported_faults = {answer.fault for answer in answers}
            answers += [
                ReportedCause.of(diagnosis)
                for diagnosis in report.diagnoses
                if diagnosis.fault not in reported_faults
            ]
            notes += report.notes
            steps = max(steps, report.steps)
    except StorageError as error:
        failure = failure or str(error)
    return RunResult.of(
        run.case,
        has_fault=run.has_fault,
        net=run.net,
        seed=run.seed,
        answers=tuple(answers),
        steps=steps,
        seconds=cpu_s,
        notes=tuple(notes),
        failed=failure,
    )


def _baseline_alarms(run: BenchmarkRun, folder: Path, limit_s: float) -> tuple[dict[str, int], str]:
    """Return the alarms of the baselines on rank 0, and why the run failed ("" if it succeeded)."""
    outcomes, failure = _run_processes(run, "monitored", folder / "monitored", limit_s)
    anomaly_step = outcomes[0].anomaly_step if outcomes else None
    if anomaly_step is not None:
        # Anomaly mode stopped the program. The program runs again without it, because the other
        # baselines need a record of the whole program.
        outcomes, failure = _run_processes(
            run, "monitored without anomaly mode", folder / "again", limit_s
        )
    record = outcomes[0].record if outcomes else None
    if record is None:
        return {}, failure or "the hooks of the baselines recorded nothing"
    return find_alarms(record, anomaly_step=anomaly_step), failure


def _run_processes(
    run: BenchmarkRun, mode: Mode, folder: Path, limit_s: float
) -> tuple[list[_Outcome], str]:
    """Run a program once on all of its ranks.

    Returns:
        The outcomes of the ranks that stored one, and why a rank failed ("" if no rank failed).
    """
    (folder / "files").mkdir(parents=True)
    context = get_context("forkserver")
    processes = [
        context.Process(target=_run_in_child, args=(run, mode, folder, rank))
        for rank in range(run.num_ranks)
    ]
    deadline = time.monotonic() + limit_s
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
        is_timed_out = any(process.is_alive() for process in processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    outcome_files = [folder / f"outcome-{rank}.json" for rank in range(run.num_ranks)]
    outcomes = [
        _Outcome.model_validate_json(file.read_bytes()) for file in outcome_files if file.exists()
    ]
    if is_timed_out:
        return outcomes, f"the run took more than {limit_s:g} s"
    if len(outcomes) < run.num_ranks:
        return outcomes, f"a process ended without a result: {_last_output_line(folder)}"
    exception = next((outcome.exception for outcome in outcomes if outcome.exception), "")
    return outcomes, "" if run.may_raise or not exception else f"the program raised {exception}"


def _last_output_line(folder: Path) -> str:
    text = "".join(file.read_text(errors="replace") for file in sorted(folder.glob("stderr-*")))
    return text.strip().rpartition("\n")[2] or "nothing on stderr"


def _run_in_child(run: BenchmarkRun, mode: Mode, folder: Path, rank: int) -> None:
    """Run a program in this child process, and store its output and outcome in the folder."""
    with open(folder / f"stderr-{rank}", "wb") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
        os.dup2(file.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    # The start method decides how data loaders start their workers: by fork, as usual on Linux.
    set_start_method("fork", force=True)
    setup = CaseSetup(
        net=run.net,
        seed=run.seed,
        folder=folder / "files",
        has_fault=run.has_fault,
        rank=rank,
        num_ranks=run.num_ranks,
    )
    if run.num_ranks > 1:
        _join_process_group(folder, setup)
    outcome = _run_program(run, mode, folder, setup)
    incomplete_file = folder / f"outcome-{rank}.part"
    incomplete_file.write_text(outcome.model_dump_json())
    incomplete_file.rename(incomplete_file.with_suffix(".json"))
    if run.num_ranks > 1 and not outcome.exception:
        torch.distributed.destroy_process_group()


def _run_program(run: BenchmarkRun, mode: Mode, folder: Path, setup: CaseSetup) -> _Outcome:
    monitoring: AbstractContextManager[object] = nullcontext()
    if mode == "traced":
        monitoring = traced(folder / "traces", TraceSettings())
    elif mode != "untraced":
        monitoring = monitored(with_anomaly_mode=mode == "monitored")
    exception, digest, anomaly_step = "", "", None
    monitor: object = None
    start_s = time.process_time()
    try:
        with monitoring as monitor:
            digest = weights_digest(run.case.program(setup))
    except AnomalyFound as error:
        anomaly_step = error.step
    except Exception as error:  # some faults raise an exception
        exception = f"{type(error).__name__}: {error}"
    return _Outcome(
        exception=exception,
        digest=digest,
        cpu_s=time.process_time() - start_s,
        record=monitor.record() if isinstance(monitor, HookMonitor) else None,
        anomaly_step=anomaly_step,
    )


def _join_process_group(folder: Path, setup: CaseSetup) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder.absolute()}/group",
        rank=setup.rank,
        world_size=setup.num_ranks,
        timeout=timedelta(seconds=LIMIT_S),
    )
