"""A whole search: from a space and an objective to the result (TUNE-1..5)."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.errors import Interrupted, SearchFailed
from sluice.cluster.settings import ComputeSettings
from sluice.training.settings import NO_EFFECT
from sluice.tuning.code import search_code
from sluice.tuning.lanes import is_ordered
from sluice.tuning.objective import Objective
from sluice.tuning.recipe import setup_of
from sluice.tuning.records import Exploit, SearchResult, Strategy, Trial
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.strategy import plan_search
from sluice.tuning.study_folder import StudyFolder
from sluice.tuning.trial_records import TrialRecords
from sluice.tuning.tuner import Listener, StudyPlan, run_tuner

if TYPE_CHECKING:
    from sluice.tuning.resumable.events import Event
    from sluice.tuning.resumable.study import Study

Hear = Callable[[Trial, tuple[Trial, ...]], None]
"""(the trial that reported, all trials after it), for whoever watches."""

Run = Callable[[StudyPlan, Listener], "Study"]
"""Runs the trials of a plan and returns the study; the listener is called after every event."""


def run_search(
    objective: Objective,
    space: Space,
    base: Setup,
    settings: SearchSettings,
    *,
    folder: Path,
    hear: Hear,
    compute: ComputeSettings,
    callbacks: Sequence[Any] = (),
    note: Callable[[str], None] = lambda _line: None,
    run: Run = run_tuner,
) -> SearchResult:
    """Run the search in ``folder``, or resume it; a finished one is read, not run again.

    Stopped at any moment, even by SIGKILL of this process or a worker, and started again, it ends
    with the same trials, stops and copies as one that was not.

    Args:
        objective: What is minimised.
        space: What is searched, the leading parameters first.
        base: The settings of all else; ``training.max_epochs`` is the length of a trial.
        settings: The budget, and how it is spent.
        folder: Holds the journal of this search alone, and Ray Tune's results and checkpoints
            unless ``compute.storage_path`` says where these go.
        hear: Is called after every report.
        compute: Machines and shares of them.
        callbacks: Callbacks of Ray Tune.
        note: Is told lines for people, as the address of Ray's dashboard.
        run: Runs the trials.

    Raises:
        SearchFailed: No trial ended with a finite loss; the first cause is named.
        ContractError: The folder holds another search; the differing settings are named.
        SettingsError: The space does not suit ``base``, or the cluster cannot be reached or is
            too small.
        StorageError: Something cannot be written or read; what was written before is kept.
        TrainingFailed: An accident stopped a trial: memory, a file, a worker that died more often
            than ``compute.retries``. It is not written down; started again, the trial runs anew.
        Interrupted: The user stopped it (Ctrl-C).
    """
    strategy, searched = plan_search(space, settings, base)
    kept = StudyFolder(
        folder,
        {
            "objective": dict(objective.subject()),
            "space": searched.model_dump(mode="json"),
            "order": list(searched.parameters),
            "base": base.model_dump(mode="json", exclude={"training": set(NO_EFFECT)}),
            "search": settings.model_dump(mode="json"),
            "ordered": is_ordered(settings, compute),
            # A GPU and a processor do not give the same bits.
            "on_gpu": compute.gpus_per_worker > 0,
            "code": search_code(),
        },
    )
    finished = kept.result()
    if finished is not None:
        return finished
    records = TrialRecords(searched, base, strategy)
    trials: tuple[Trial, ...] = ()

    def listen(study: "Study", event: "Event") -> None:
        nonlocal trials
        trials = records.update(study)
        hear(trials[event.trial], trials)

    plan = StudyPlan(
        objective=objective,
        space=searched,
        base=base,
        settings=settings,
        strategy=strategy,
        folder=folder.absolute(),
        journal=kept.journal.absolute(),
        compute=compute,
        callbacks=callbacks,
        note=note,
    )
    try:
        study = run(plan, listen)
    except KeyboardInterrupt:
        raise Interrupted(
            f"The search was stopped with {_num_ended(trials)} of {settings.num_trials} trials "
            "ended.",
            fix="Run again to resume: nothing that was finished is lost.",
        ) from None
    result = _result(records.update(study), strategy, base, records.exploits(study), folder=folder)
    kept.save(result)
    return result


def _num_ended(trials: tuple[Trial, ...]) -> int:
    return sum(trial.state != "running" for trial in trials)


def _result(
    trials: tuple[Trial, ...],
    strategy: Strategy,
    base: Setup,
    exploits: tuple[Exploit, ...],
    *,
    folder: Path,
) -> SearchResult:
    best = min(trials, key=lambda trial: (trial.loss, trial.id))
    if not math.isfinite(best.loss):
        raise SearchFailed(
            f"None of {len(trials)} trials ended with a finite loss. The first: "
            f"{trials[0].reason or 'no reason given'}",
            cause=f"Number of different reasons: {len({trial.reason for trial in trials})}.",
            fix="Correct what the first trial names; the POC gate shows most such errors within "
            "seconds. If losses diverge, lower the top of the learning rate's range. If it was "
            f"none of the two, remove {folder} and run again: what is written there is final.",
        )
    return SearchResult(
        strategy=strategy,
        trials=trials,
        best=best.id,
        setup=setup_of(base, best.schedule, where=f"Trial {best.id}"),
        exploits=exploits,
        num_trials=len(trials),
        seconds=sum(trial.seconds for trial in trials),
    )
