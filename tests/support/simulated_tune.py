"""Runs a study without processes of Ray: in this process, one trial at a time."""

import shutil
from pathlib import Path

from sluice.base.files import storage_error
from sluice.tuning.concurrency import is_ordered, max_concurrent_trials
from sluice.tuning.schedulers import make_scheduler, metric_of
from sluice.tuning.searchers import make_searcher
from sluice.tuning.trainable import trial_reports
from sluice.tuning.tune_space import decode


def simulate(plan, listener, *, keeps_all=False):
    """Run a study like ``run_tuner``, with Ray Tune's schedulers and searchers.

    ``keeps_all`` keeps all checkpoints, also checkpoints that the study no longer needs.
    """
    from sluice.tuning.resumable.open_study import OpenStudy, StudySettings

    metric = metric_of(plan.strategy)
    scheduler = make_scheduler(
        plan.settings, plan.strategy, plan.space, plan.base.training.max_epochs
    )
    scheduler.set_search_properties(metric, "min")
    open_study = OpenStudy(
        plan.journal,
        StudySettings(
            time_attr="epoch",
            ordered=is_ordered(plan.settings, plan.compute),
            concurrency=max_concurrent_trials(plan.settings, plan.compute),
            seed=plan.settings.seed,
            errors="stop",
        ),
        scheduler,
        make_searcher(plan.settings, plan.strategy, plan.space, plan.base, metric),
        metric=metric,
        num_samples=plan.settings.num_trials,
    )
    try:
        _run(plan, listener, open_study.study, keeps_all)
    finally:
        open_study.journal.close()
    return open_study.study


def _run(plan, listener, study, keeps_all):
    from sluice.tuning.resumable import StudyEvent

    report_iterators = {}
    study.start()
    study.suggest()
    while running := study.running_trials():
        number = running[0].number
        attempt = study.trials[number].attempt
        if (number, attempt) not in report_iterators:
            report_iterators[number, attempt] = _reports(plan, study, number)
        report = next(report_iterators[number, attempt], None)
        attempt_fields = {"trial": number, "attempt": attempt}
        if report is None:
            event = StudyEvent(kind="complete", **attempt_fields)
        else:
            metrics, checkpoint = report
            event = StudyEvent(result=metrics, checkpoint=checkpoint, **attempt_fields)
        for applied in study.receive(event):
            listener(study, applied)
        if keeps_all:
            continue
        latest_checkpoints = {study.latest_checkpoint(trial.number)[0] for trial in study.trials}
        kept_checkpoints = study.checkpoints_needed() | latest_checkpoints
        for path in (plan.folder / "checkpoints").glob("*"):
            if str(path) not in kept_checkpoints:
                shutil.rmtree(path)


def _reports(plan, study, number):
    trial = study.trials[number]
    start, _ = study.latest_checkpoint(number)
    reports = trial_reports(
        plan.objective,
        decode(plan.space, plan.base, trial.config),
        plan.report_epochs,
        start=Path(start) if start else None,
        where=start,
    )
    for report in reports:
        name = f"{number}-{trial.attempt}-{report.metrics['epoch']}"
        folder = plan.folder / "checkpoints" / name
        if report.save is not None:
            shutil.rmtree(folder, ignore_errors=True)
            try:
                folder.mkdir(parents=True)
                report.save(folder)
            except OSError as error:
                raise storage_error(folder, error) from error
        yield report.metrics, str(folder) if report.save is not None else ""
