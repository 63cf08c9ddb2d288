"""LOG-1: one valid log for the whole experiment."""

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.cluster.settings import ComputeSettings
from sluice.eventlog.event_log import read_events, validate_log
from sluice.training.merged_log import merge_logs
from sluice.training.parallel import train_members
from tests.sluice.training.conftest import make_specs
from tests.support.synthetic import SineWorkload


def merge(members, store, workload=None):
    return merge_logs(
        members,
        store,
        workload=workload or SineWorkload(),
        architecture="gru",
        config={"model": {"hidden": 6}},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_specs = make_specs(tmp_path_factory.mktemp("trained"), seeds=(0, 1), folds=2, max_epochs=2)
    members, _ = train_members(run_specs, compute=ComputeSettings(workers=1), on_event=[].append)
    return members, ArtifactStore(run_specs[0].artifacts)


def test_merged_log_holds_every_event_in_seed_and_fold_order(trained):
    members, store = trained
    path = store.path(merge(members[::-1], store))
    report = validate_log(path, test_metrics=("test_loss", "test_rmse"), headline="mean_loss")
    events = read_events(path).events

    assert report.counts == {
        "experiment_start": 1,
        "fold_start": 4,
        "epoch_complete": 8,
        "fold_complete": 4,
        "experiment_complete": 1,
    }
    assert [(e["seed"], e["fold_id"]) for e in events if e["event"] == "fold_complete"] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    first, last = events[0], events[-1]
    assert first["features"] == ["value", "slope"]
    assert (last["total_folds"], last["total_seeds"]) == (2, 2)
    assert last["elapsed_seconds"] == pytest.approx(sum(m.seconds for m in members))
    times = [e["timestamp"] for e in events]
    assert (times[0], times[-1]) == (min(times), max(times))
    assert last["mean_loss"] == pytest.approx(sum(m.test_metrics["loss"] for m in members) / 4)


def test_merging_again_gives_the_same_artifact(trained):
    members, store = trained

    assert merge(members, store) == merge(members, store)


def test_headline_metric_that_is_not_computed_is_rejected(trained):
    class Other(SineWorkload):
        headline_metric = "rsme"

    with pytest.raises(ContractError, match="Did you mean 'rmse'"):
        merge(*trained, workload=Other())


def test_merging_no_members_is_rejected(tmp_path):
    with pytest.raises(ContractError, match="at least one member"):
        merge([], ArtifactStore(tmp_path))


def test_fold_run_log_with_missing_fields_is_rejected(trained):
    members, store = trained
    other = store.put(
        b'{"event": "fold_start", "timestamp": "2026-01-01T00:00:00+00:00", "fold_id": 0}\n'
    )
    broken = [members[0].model_copy(update={"event_log": other})]

    with pytest.raises(ContractError, match="'train_size' is missing"):
        merge(broken, store)
