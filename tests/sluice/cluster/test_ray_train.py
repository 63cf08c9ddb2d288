"""Distributed training of one model on two ranks of Ray Train (TRAIN-1, REPRO-4, TUNE-3)."""

import dataclasses
import os
import signal
import threading
import time
from collections import Counter

import pytest

from sluice.base.errors import SettingsError, TrainingFailed
from sluice.cluster.ray_train import open_mailbox
from sluice.cluster.settings import ComputeSettings
from sluice.training.fold_run_on_ranks import train_fold_run_on_ranks
from tests.sluice.training.conftest import make_specs
from tests.support.rank_jobs import start_ranks, train_on_rank

COMPUTE = ComputeSettings(ranks_per_training=2)


def make_spec(home, **options):
    (spec,) = make_specs(home, max_epochs=3, **options)
    return dataclasses.replace(spec, num_ranks=2)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ray_train_gives_the_same_bits_as_plain_processes_even_if_a_rank_is_killed(
    ray_here, tmp_path
):
    died = tmp_path / "died"
    options = {"kill_at_loss": 14, "only_first_time": str(died)}
    received = []
    member = train_fold_run_on_ranks(
        make_spec(tmp_path / "ray", **options), received.append, compute=COMPUTE
    )
    was_killed = died.exists()
    (plain, _), _ = start_ranks(
        train_on_rank, 2, tmp_path, make_spec(tmp_path / "plain", **options)
    )

    assert was_killed
    assert (member.weights, member.test_metrics) == (plain.weights, plain.test_metrics)
    # It started twice and did not repeat epochs that a checkpoint covers.
    kinds = [(event.kind, event.epochs_done) for event in received]
    assert [kind for kind, _ in kinds].count("started") == 2
    assert kinds[-1] == ("finished", 3)
    assert [done for kind, done in kinds if kind == "epoch"][-1] == 3
    assert ray_here.is_initialized()
    assert not list((tmp_path / "ray" / "runs").glob(".ranks-*"))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_an_error_of_user_code_is_raised_and_not_retried(tmp_path):
    received = []
    with pytest.raises(TrainingFailed, match=r"Seed 0, fold 0: ZeroDivisionError: the user's bug"):
        train_fold_run_on_ranks(
            make_spec(tmp_path, raise_in_loss=True), received.append, compute=COMPUTE
        )

    assert [event.kind for event in received] == ["started", "failed"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus_per_worker": 0.6, "ranks_per_training": 3}, r"3 ranks .* have 2 slots. .* 0.6"),
        (
            {"gpus_per_worker": 1},
            r"reserves 1 GPU \(gpus_per_worker\), but the largest of 2 machines has 0",
        ),
        (
            {"gpus_per_worker": 0.5},
            r"gpus_per_worker must be an integer if ranks_per_training is above",
        ),
    ],
)
def test_ranks_that_do_not_fit_on_the_cluster_are_refused(options, message, tmp_path):
    """Without the check, Ray waits forever."""
    compute = ComputeSettings(**{"ranks_per_training": 2} | options)
    with pytest.raises(SettingsError, match=message):
        train_fold_run_on_ranks(make_spec(tmp_path), lambda _: None, compute=compute)


@pytest.mark.exhaustive
def test_a_lost_mailbox_process_is_reported(ray_here, tmp_path):
    """Mailboxes run on the machine of the driver, so that the loss of another one is harmless."""
    from ray._private.state import actors

    mailboxes = [open_mailbox(ray_here) for _ in range(4)]
    ray_here.get([mailbox.error.remote() for mailbox in mailboxes])
    nodes = Counter(actor["Address"]["NodeID"] for actor in alive_mailboxes(actors()))
    for mailbox in mailboxes:
        ray_here.kill(mailbox)
    assert nodes == {ray_here.get_runtime_context().get_node_id(): 4}

    def lose(event):
        if event.kind != "failed":
            (mailbox,) = alive_mailboxes(actors())
            os.kill(mailbox["Pid"], signal.SIGKILL)

    with pytest.raises(
        TrainingFailed, match=r"Seed 0, fold 0: The process that relays messages of the ranks"
    ):
        train_fold_run_on_ranks(make_spec(tmp_path, pause_s=0.05), lose, compute=COMPUTE)
    assert not list((tmp_path / "runs").glob(".ranks-*"))


@pytest.mark.exhaustive
def test_an_interrupted_run_ends_its_ranks_and_releases_their_resources(ray_here, tmp_path):
    """A thread that still waits for Ray would crash this process at shutdown."""
    threads = threading.active_count()

    def interrupt(event):
        if event.kind == "epoch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_fold_run_on_ranks(make_spec(tmp_path, pause_s=0.05), interrupt, compute=COMPUTE)

    assert threading.active_count() == threads
    deadline = time.monotonic() + 20
    while ray_here.available_resources().get("CPU") != ray_here.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive_mailboxes(actors):
    return [
        a
        for a in actors.values()
        if a["ActorClassName"].endswith("Mailbox") and a["State"] == "ALIVE"
    ]
