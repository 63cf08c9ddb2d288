"""A whole search: from a space and an objective to the result (TUNE-1..3)."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from sluice.cluster.settings import ComputeSettings
from sluice.errors import Interrupted, SearchFailed
from sluice.training.settings import NO_EFFECT
from sluice.tuning.code import search_code
from sluice.tuning.driver import Hear, Pool, ThisProcess, drive
from sluice.tuning.journal import open_journal
from sluice.tuning.lanes import most_at_a_time
from sluice.tuning.objective import Objective
from sluice.tuning.population import PopulationSearch
from sluice.tuning.proposals import own_first, random_proposals, tpe_proposals
from sluice.tuning.pruning import rule_named
from sluice.tuning.ray_segments import open_ray_segments
from sluice.tuning.recipe import setup_of
from sluice.tuning.records import Exploit, SearchResult, Strategy, Trial
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.stopping import StoppingSearch
from sluice.tuning.strategy import plan_search

Where = Literal["ray", "this_process"]


def run_search(
    objective: Objective,
    space: Space,
    base: Setup,
    settings: SearchSettings,
    *,
    folder: Path,
    hear: Hear,
    compute: ComputeSettings,
    where: Where = "ray",
) -> SearchResult:
    """Run the search in ``folder``, or go on with it; a finished one is read, not run again.

    Stopped at any moment, even by SIGKILL of this process or a worker, and started again, it ends
    with the same trials, stops and exploits as one that was not.

    Args:
        objective: What is minimised.
        space: What is searched, the leading parameters first.
        base: The settings of all else; ``training.max_epochs`` is the length of a trial.
        settings: The budget, and how it is spent.
        folder: Holds the journal and the checkpoints of this search alone.
        hear: Hears of every outcome.
        compute: Machines and shares of them; they change no decision.
        where: On Ray, or one segment after another in this process.

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
    subject = {
        "objective": dict(objective.subject()),
        "space": searched.model_dump(mode="json"),
        "order": list(searched.parameters),
        "base": base.model_dump(mode="json", exclude={"training": set(NO_EFFECT)}),
        "search": settings.model_dump(mode="json"),
        # A GPU and a processor do not give the same bits; how much of one is reserved changes none.
        "on_gpu": compute.gpus_per_worker > 0,
        "code": search_code(),
    }
    search = _decisions(searched, base, settings, strategy)
    with open_journal(folder, subject=subject) as journal:
        for outcome in journal.restored:
            search.tell(outcome)
        if search.ready():
            try:
                with _pool(
                    where,
                    objective,
                    folder,
                    compute,
                    most=most_at_a_time(settings, compute) or settings.num_trials,
                ) as pool:
                    drive(search, pool, journal, folder, hear)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"The search was stopped with {_num_ended(search.trials)} of "
                    f"{settings.num_trials} trials ended.",
                    fix="Run again to go on: nothing that was finished is lost.",
                ) from None
    exploits = tuple(search.exploits) if isinstance(search, PopulationSearch) else ()
    return _result(search.trials, strategy, base, exploits, folder=folder)


def _decisions(
    space: Space, base: Setup, settings: SearchSettings, strategy: Strategy
) -> StoppingSearch | PopulationSearch:
    draw = random_proposals(space, base, seed=settings.seed)
    if strategy.proposals == "tpe":
        draw = tpe_proposals(
            space, base, seed=settings.seed, startup_trials=settings.startup_trials
        )
    draw = own_first(draw, space, base, seed=settings.seed)
    plan: dict[str, Any] = {
        "num_trials": settings.num_trials,
        "decision_epochs": strategy.decision_epochs,
        "max_epochs": base.training.max_epochs,
    }
    if strategy.scheduler == "pbt":
        return PopulationSearch(space, draw, seed=settings.seed, **plan)
    rule = rule_named(strategy.scheduler, reduction=settings.reduction)
    return StoppingSearch(draw, rule, lanes=settings.concurrent_trials or 8, **plan)


@contextlib.contextmanager
def _pool(
    where: Where, objective: Objective, folder: Path, compute: ComputeSettings, *, most: int
) -> Iterator[Pool]:
    if where == "this_process":
        yield ThisProcess(objective, folder)
        return
    with open_ray_segments(objective, folder, compute, most=most) as pool:
        yield pool


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
            cause=f"They failed for {len({trial.reason for trial in trials})} different reason(s).",
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
