"""Runs a whole search, from a space and an objective to the result, or resumes it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.errors import Interrupted, SearchFailed
from sluice.base.pluralize import pluralize
from sluice.cluster.settings import ComputeSettings
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT
from sluice.tuning.code import search_code
from sluice.tuning.concurrency import is_ordered
from sluice.tuning.objective import Objective
from sluice.tuning.records import Exploit, SearchResult, Strategy, TrialRecord
from sluice.tuning.schedule_to_settings import settings_from_schedule
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.strategy import plan_search
from sluice.tuning.study_folder import StudyFolder
from sluice.tuning.trial_records import TrialRecords
from sluice.tuning.tuner import Listener, StudyPlan, run_tuner

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import StudyEvent
    from sluice.tuning.resumable.study import Study

OnReport = Callable[[TrialRecord, tuple[TrialRecord, ...]], None]
"""Function of (record of the trial that changed, updated records of all trials)."""

RunTrials = Callable[[StudyPlan, Listener], "Study"]
"""Function that runs the trials of a plan and returns the study. The listener is called after every
event."""


def run_search(
    objective: Objective,
    space: Space,
    base: TrialSettings,
    settings: SearchSettings,
    *,
    folder: Path,
    on_report: OnReport,
    compute: ComputeSettings,
    callbacks: Sequence[Any] = (),
    log: Callable[[str], None] = lambda _line: None,
    run: RunTrials = run_tuner,
) -> SearchResult:
    """Run or resume the search in ``folder``; return the stored result if it has finished.

    A search can be interrupted at any moment, even by SIGKILL of this process or a worker. A
    resumed search keeps its earlier decisions. If it is ordered, it ends with the same trials,
    early stops and exploits (copies of weights between trials) as an uninterrupted search.

    Args:
        objective: Function that is minimised.
        space: The search space, the most important parameters first.
        base: Settings before the values of a trial replace some of them; ``training.max_epochs`` is
            the length of a trial that is not stopped.
        settings: Number of trials, and how they are suggested and stopped.
        folder: Folder of this search only. It contains the journal, and also Ray Tune's results and
            checkpoints unless ``compute.storage_path`` is set.
        on_report: Called after every event of a trial: a start, a report, an end or a failure.
        compute: Machines and resources.
        callbacks: Callbacks of Ray Tune.
        log: Receives messages for the user, such as the address of Ray's dashboard.
        run: Runs the trials.

    Raises:
        SearchFailed: No trial ended with a finite loss; the message contains the first reason.
        ContractError: The folder contains another search; the message lists the differences.
        SettingsError: The space does not suit ``base``, the cluster cannot be reached or is too
            small, or a scheduler or searcher refuses its arguments.
        StorageError: A file cannot be written or read; earlier results are kept.
        IntegrityError: A file of the folder is damaged, or a checkpoint is missing.
        TrainingFailed: A transient error, such as a lost worker or exhausted memory, stopped a
            trial more than ``compute.retries`` times. The failure is not recorded, so the next
            start retries the trial.
        Interrupted: The user stopped the search (Ctrl-C).
    """
    strategy, searched_space = plan_search(space, settings, base)
    study_folder = StudyFolder(
        folder,
        {
            "objective": dict(objective.subject()),
            "space": searched_space.model_dump(mode="json"),
            "order": list(searched_space.parameters),
            "base": base.model_dump(
                mode="json", exclude={"training": set(SETTINGS_WITHOUT_EFFECT)}
            ),
            "search": settings.model_dump(mode="json"),
            "ordered": is_ordered(settings, compute),
            # Results on a GPU and on a CPU differ by rounding.
            "on_gpu": compute.gpus_per_worker > 0,
            "code": search_code(),
        },
    )
    stored_result = study_folder.result()
    if stored_result is not None:
        return stored_result
    records = TrialRecords(searched_space, base, strategy)
    trials: tuple[TrialRecord, ...] = ()

    def on_event(study: "Study", event: "StudyEvent") -> None:
        nonlocal trials
        trials = records.update(study)
        on_report(trials[event.trial], trials)

    plan = StudyPlan(
        objective=objective,
        space=searched_space,
        base=base,
        settings=settings,
        strategy=strategy,
        folder=folder.absolute(),
        journal=study_folder.journal.absolute(),
        compute=compute,
        callbacks=callbacks,
        log=log,
    )
    try:
        study = run(plan, on_event)
    except KeyboardInterrupt:
        raise Interrupted(
            f"The search was stopped with {_count_ended_trials(trials)} of "
            f"{pluralize(settings.num_trials, 'trial')} ended.",
            fix="Run again to resume: finished work is kept.",
        ) from None
    result = _make_result(
        records.update(study), strategy, base, records.exploits(study), folder=folder
    )
    study_folder.save(result)
    return result


def _count_ended_trials(trials: tuple[TrialRecord, ...]) -> int:
    return sum(trial.state != "running" for trial in trials)


def _make_result(
    trials: tuple[TrialRecord, ...],
    strategy: Strategy,
    base: TrialSettings,
    exploits: tuple[Exploit, ...],
    *,
    folder: Path,
) -> SearchResult:
    """Return the result, or raise an error if no trial has a finite loss."""
    best_trial = min(trials, key=lambda trial: (trial.loss, trial.id))
    if not math.isfinite(best_trial.loss):
        num_reasons = len({trial.reason for trial in trials})
        raise SearchFailed(
            f"No trial of {len(trials)} ended with a finite loss. Reason of the first trial: "
            f"{trials[0].reason or 'unknown'}",
            cause="All trials ended for the same reason."
            if num_reasons == 1
            else f"The trials ended for {num_reasons} different reasons.",
            fix="Fix the reason of the first trial; the POC gate finds most such errors within "
            "seconds. If losses diverge, lower the upper end of the learning-rate range. "
            f"If no setting or code changes, remove {folder} and run again: recorded failures "
            "are final.",
        )
    return SearchResult(
        strategy=strategy,
        trials=trials,
        best=best_trial.id,
        setup=settings_from_schedule(base, best_trial.schedule, where=f"Trial {best_trial.id}"),
        exploits=exploits,
        num_trials=len(trials),
        seconds=sum(trial.seconds for trial in trials),
    )
