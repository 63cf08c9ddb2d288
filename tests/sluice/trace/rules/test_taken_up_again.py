"""What is left behind where a program takes up again, and classes one place off (TRACE-2 to 16).

Each was missed in a program by somebody who did not know the rules; each stands beside a twin.
"""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from sluice.trace.rules.worker_streams import WORKER_STREAMS


def told(trace):
    return {(d.finding.fault, d.finding.severity, d.finding.step) for d in diagnose(judge(trace))}


def draws(seed=1):
    return torch.Generator().manual_seed(seed)


def numbers(rows, columns=6, seed=1):
    return torch.randn(rows, columns, generator=draws(seed))


def net(columns=6, outputs=3):
    return nn.Sequential(nn.Linear(columns, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


# ---- an optimizer whose state was loaded and that is replaced


class Job:
    """A training that is picked up from its own checkpoint, its rate set by hand."""

    def __init__(self, rate, *, decay=0.01):
        self.model, self.step, self.rate = net(), 0, rate
        self.configure(decay)

    def configure(self, decay=0.01):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=decay)

    def learn(self, steps):
        x = numbers(64)
        y = (x[:, 0] > 0).long()
        self.model.train()
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.step += 1


def falling(step):
    return 3e-3 * (0.55 + 0.45 * math.cos(math.pi * step / 120))


@pytest.mark.parametrize("kind", ["left behind", "loaded last", "another phase", "other settings"])
def test_a_state_that_is_loaded_into_an_optimizer_that_is_replaced_is_told(trace_of, kind):
    def program():
        job = Job(falling)
        job.learn(40)
        saved = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
        job = Job((lambda step: 0.1 * falling(step)) if kind == "another phase" else falling)
        job.model.load_state_dict(saved["model"])
        if kind == "loaded last":
            job.configure()
            job.optimizer.load_state_dict(saved["optimizer"])
        else:
            job.optimizer.load_state_dict(saved["optimizer"])
            job.configure(decay=0.2 if kind == "other settings" else 0.01)
        job.step = 40
        job.learn(30)

    found = told(trace_of(program))

    assert found == ({("resume lost state", "error", 41)} if kind == "left behind" else set())


# ---- a mode that is restored


@contextlib.contextmanager
def scoring(model, *, asks_first):
    before = model.training
    model.eval()
    if not asks_first:
        before = model.training
    try:
        yield
    finally:
        model.train(before)


@pytest.mark.parametrize(
    ("kind", "severity"), [("restored late", "error"), ("restored", None), ("meant", "confirm")]
)
def test_a_mode_that_is_asked_for_after_it_was_switched_is_told(trace_of, kind, severity):
    def program():
        model, x = net(), numbers(64)
        y = (x[:, 0] > 0).long()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            if kind == "meant":
                model.eval()
                with torch.no_grad():
                    model(x)
                model.eval()  # it says so again: statistics and dropout are to rest
            else:
                with scoring(model, asks_first=kind == "restored"), torch.no_grad():
                    model(x)
            for _ in range(4 + epoch):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    found = {(f, s) for f, s, _ in told(trace_of(program))}

    assert found == ({("training in evaluation mode", severity)} if severity else set())


# ---- workers of a stream


class Stream(IterableDataset):
    """Rows that are drawn, or read from a table in an order that is drawn."""

    def __init__(self, kind):
        self.kind, self.generator, self.table = kind, draws(), numbers(64)

    def __iter__(self):
        info = get_worker_info()
        number, of = (0, 1) if info is None else (info.id, info.num_workers)
        if self.kind == "seeded":
            self.generator.manual_seed(info.seed)
        if self.kind == "sharded":  # all workers draw one order, and take turns
            for row in torch.randperm(64, generator=self.generator)[number::of]:
                yield self.table[row]
        elif self.kind == "whole":
            yield from self.table
        elif self.kind == "constant":
            yield from torch.ones(24, 6)
        else:
            for _ in range(24):
                yield torch.randn(6, generator=self.generator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_told"),
    [("drawn", True), ("whole", True), ("seeded", False), ("sharded", False), ("constant", False)],
)
def test_workers_of_a_stream_that_give_the_same_rows_are_told(trace_of, kind, is_told):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(2):
            for x in DataLoader(Stream(kind), batch_size=4, num_workers=2):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    found = WORKER_STREAMS(trace_of(program))

    assert [(f.fault, f.severity, f.step) for f in found] == (
        [("worker streams copied", "error", 1)] if is_told else []
    )
    assert all("2 of 2 workers" in f.what for f in found)


# ---- one-hot classes that are one place off


@pytest.mark.parametrize("kind", ["from one", "below", "right", "background", "never first"])
def test_one_hot_classes_that_are_one_place_off_are_told(trace_of, kind):
    first = {"from one": 1, "below": -1}.get(kind, 0)

    def program():
        model, x = net(outputs=5), numbers(320)
        classes = x[:, :5].argmax(1)
        if kind == "background":  # none of the classes: its rows have no 1, and all others occur
            classes[::4] = -1
        if kind == "never first":
            classes = classes.clamp(min=1)
        target = ((classes + first)[:, None] == torch.arange(5)).float()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(4):
            for rows in torch.arange(320).split(40):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(x[rows]), target[rows]).backward()
                optimizer.step()

    found = [f for f in judge(trace_of(program)) if f.fault == "id out of range"]

    if first:
        assert [(f.severity, f.step) for f in found] == [("error", 1)]
        assert f"column {0 if first == 1 else 4} of one-hot targets is never 1" in found[0].what
    else:
        assert not found


# ---- two classes of which nothing is learned


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "by heart", "weak", "clear"])
def test_two_classes_of_which_nothing_is_learned_are_told_without_an_evaluation(trace_of, kind):
    by_heart = kind == "by heart"
    num, epochs = (500, 40) if by_heart else (2000, 10)

    def program():
        x = numbers(num, seed=5)
        slope = 0.6 if kind == "weak" else 3.0
        y = (torch.rand(num, generator=draws(6)) < torch.sigmoid(slope * x[:, 0])).float()
        if kind in ("shuffled", "by heart"):
            y = y[torch.randperm(num, generator=draws(7))]
        model = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for epoch in range(epochs):
            if by_heart and epoch == 25:
                optimizer.param_groups[0]["lr"] = 5e-3
            for rows in torch.randperm(num, generator=draws(epoch)).split(50):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows]).backward()
                optimizer.step()

    found = [f for f in judge(trace_of(program)) if f.severity == "error"]

    assert {f.fault for f in found} == (
        {"labels independent of inputs"} if kind == "shuffled" else set()
    )


# ---- what the tracer runs itself


def test_a_probe_of_a_network_that_returns_its_loss_is_no_evaluation(trace_of):
    class Speaker(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)

        def forward(self, ids, targets):
            logits = self.head(self.table(ids).cumsum(1))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def program():
        model = Speaker()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(9):
            ids = torch.randint(11, (8, 13), generator=draws(step))
            optimizer.zero_grad()
            model(ids[:, :-1], ids[:, 1:]).backward()
            optimizer.step()
            if step % 4 == 3:
                with torch.no_grad():
                    model(ids[:, :-1], ids[:, 1:])

    assert [e.step for e in trace_of(program).evaluations] == [4, 8]


# ---- the wrong side of a score that moves a little


@pytest.mark.parametrize(
    ("scores", "is_told"),
    [
        ([0.5, 0.4, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98], True),  # once lower: kept, and for good
        ([0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], False),  # stands still at its best
    ],
    ids=["lowest", "highest"],
)
def test_the_lowest_score_that_is_kept_twice_is_told(trace_of, tmp_path, scores, is_told):
    """Of both the second is kept and nothing later; how far the loss had come tells them apart."""

    def program():
        model, x = nn.Linear(3, 3, bias=False), torch.eye(3)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        kept = None
        for turn, score in enumerate(scores):
            for _ in range(1 if turn < 2 and is_told else 12):
                optimizer.zero_grad()
                F.cross_entropy(model(x), torch.arange(3)).backward()
                optimizer.step()
            with torch.no_grad():
                F.cross_entropy(model(x), torch.arange(3))
            if kept is None or (score < kept if is_told else score > kept):
                kept = score
                torch.save(model.state_dict(), tmp_path / "best.pt")
        model.load_state_dict(torch.load(tmp_path / "best.pt"))

    found = {(f.fault, f.severity) for f in judge(trace_of(program))}

    assert (("selection never moves", "error") in found) == is_told
