"""REPRO-1, REPRO-2, TRACE-6: the same seeds give identical bits in any process."""

import dataclasses
import os
import pickle
import subprocess
import sys

import pytest
import torch

from sluice.training import fold_run
from sluice.training.fold_run import train_fold_run
from tests.support.kill_server import ROOT
from tests.support.killed_work import TrainWork, ignore

TRAIN_SCRIPT = """
import pickle, random, sys
import torch
work, folder = pickle.load(sys.stdin.buffer)
random.seed(), torch.seed()
print(hash("text"), torch.get_num_threads(), work(folder).weights)
"""


@pytest.mark.slow
def test_hash_seed_threads_and_global_generators_do_not_change_the_weights(specs, tmp_path):
    (spec,) = specs()
    work = TrainWork(spec=spec)
    others = []
    for number in (1, 2):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(number))
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(number), **threads},
        )
        pickle.dump((work, tmp_path / str(number)), process.stdin)
        process.stdin.close()
        others.append(process)
    report = []
    for process in others:
        report.append(process.stdout.read().decode().split())
        process.stdout.close()
        assert process.wait(timeout=60) == 0
    (hash_1, threads_1, weights_1), (hash_2, threads_2, weights_2) = report

    assert hash_1 != hash_2
    assert (threads_1, threads_2) == ("1", "2")
    assert weights_1 == weights_2 == work(tmp_path / "here").weights


def test_data_seed_changes_row_order_but_not_initial_weights(specs, monkeypatch):
    (spec,) = specs(max_epochs=1, dropout=0.0)
    initial_weights, targets_in_order = [], []

    def spy(model, loss_fn, *rest, **named):
        initial_weights.append(
            torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        )

        def record_targets(output, y):
            targets_in_order.append(y.flatten())
            return loss_fn(output, y)

        return train(model, record_targets, *rest, **named)

    train = fold_run.train
    monkeypatch.setattr(fold_run, "train", spy)
    train_fold_run(spec, ignore)
    usual, targets_in_order = torch.cat(targets_in_order), []
    train_fold_run(dataclasses.replace(spec, data_seed=1), ignore)
    moved = torch.cat(targets_in_order)

    assert torch.equal(*initial_weights)
    assert not torch.equal(usual, moved)
    assert torch.equal(usual.sort().values, moved.sort().values)


def test_train_seed_changes_initial_and_trained_weights(specs, monkeypatch):
    initial_weights = []

    def spy(model, *rest, **named):
        initial_weights.append(
            torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        )
        return train(model, *rest, **named)

    train = fold_run.train
    monkeypatch.setattr(fold_run, "train", spy)
    weights = {
        train_fold_run(spec, ignore).weights for spec in specs(seeds=(0, 1, 2), max_epochs=1)
    }

    assert len(weights) == 3
    assert not torch.equal(initial_weights[0], initial_weights[1])
