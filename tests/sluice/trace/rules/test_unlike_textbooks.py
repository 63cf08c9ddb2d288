"""Faults in programs like no textbook's, each beside a twin that is right (TRACE-2 to 13).

Each was missed, or told where nothing was wrong, in a program by somebody who did not know the
rules.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge

DRAWS = torch.Generator().manual_seed(3)
"""Of this file, as scripts have one for their batches."""


def causes(trace):
    """Return what is wrong, without what is so only because of it."""
    return [d.finding for d in diagnose(judge(trace))]


def told(trace):
    return {(f.fault, f.severity, f.step) for f in causes(trace)}


def numbers(rows, columns=6, seed=1):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def net(columns=6, outputs=3):
    return nn.Sequential(nn.Linear(columns, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


# ---- gradients that are for no step


@pytest.mark.parametrize("clears", [True, False])
def test_gradients_of_evaluation_mode_that_are_cleared_train_nothing(trace_of, clears):
    def program():
        model, x, y = net(), numbers(64), torch.arange(64) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for phase in range(3):
            for _ in range(4):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            for row in range(6):  # Fisher's information, as elastic weight consolidation takes it
                model.zero_grad()
                F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
            if clears:
                model.zero_grad()
                model.train()
            elif phase < 2:
                optimizer.step()

    found = {fault for fault, _, _ in told(trace_of(program))}

    assert ("training in evaluation mode" in found) is not clears


@pytest.mark.parametrize("how", ["in place", "anew", "some rows", "not"])
def test_gradients_that_are_zeroed_by_hand_after_a_clip_are_told(trace_of, how):
    def program():
        model, x, y = net(), numbers(64), torch.arange(64) % 3
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(12):
            for parameter in model.parameters():
                parameter.grad = None
            F.cross_entropy(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.mul_(0.5)
                if how == "in place":
                    parameter.grad.zero_()
                elif how == "anew":
                    parameter.grad = torch.zeros_like(parameter)
                elif how == "some rows":  # which are meant to rest
                    parameter.grad[:2] = 0
            optimizer.step()

    found = [f for f in causes(trace_of(program)) if f.severity == "error"]

    if how in ("in place", "anew"):
        assert [(f.fault, f.step) for f in found] == [("gradients cleared before the step", 1)]
        assert "in 12 of 12 steps" in found[0].what
    else:
        assert not found


@pytest.mark.parametrize(("unscales", "limit"), [(False, 2.0), (True, 2.0), (True, None)])
def test_a_clip_by_hand_that_meets_the_loss_scale_is_told_by_the_norms(trace_of, unscales, limit):
    def program():
        model, x, y = net(), numbers(64), torch.arange(64) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for _ in range(40):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            if limit is not None:
                for parameter in model.parameters():
                    parameter.grad.mul_(min(limit / (float(norm) + 1e-6), 1.0))
            scaler.step(optimizer)
            scaler.update()

    found = [f for f in causes(trace_of(program)) if f.severity == "error"]

    if unscales:
        assert not found
    else:
        assert [f.fault for f in found] == ["clip before unscale"]
        assert "times the loss scale is 2," in found[0].what


@pytest.mark.parametrize("has_teacher", [True, False])
def test_a_loss_against_targets_that_move_need_not_fall(trace_of, has_teacher):
    def program():
        model, teacher, x = nn.Linear(6, 1), nn.Linear(6, 1), numbers(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for i in range(80):
            with torch.no_grad():
                goal = (teacher(x) if has_teacher else x[:, :1]) + 0.2 * i
            optimizer.zero_grad()
            F.mse_loss(model(x), goal).backward()
            optimizer.step()

    found = {fault for fault, _, _ in told(trace_of(program))}

    assert ("loss not falling" in found) is not has_teacher


# ---- a second training in one run


class LowRank(nn.Module):
    def __init__(self, base, start):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(start * numbers(4, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_factors_that_both_begin_at_zero_after_a_first_training_are_told(trace_of, start):
    def fit(model, parameters, steps):
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        x = numbers(64)
        y = (x[:, 0] > 0).long()
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    def program():
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        fit(model, model.parameters(), 90)
        model.requires_grad_(False)
        model[0], model[2] = LowRank(model[0], start), LowRank(model[2], start)
        fit(model, [p for p in model.parameters() if p.requires_grad], 40)

    trace = trace_of(program)

    errors = {found for found in told(trace) if found[1] == "error"}
    assert errors == ({("constant initialisation", "error", 91)} if not start else set())
    # Its steps are looked at as closely as the first ones.
    looked = {m.step for m in trace.measures}
    assert {91, 92} <= looked
    assert len(looked & set(range(91, 101))) >= 4


@pytest.mark.parametrize("at", [0.1, 1.0])
def test_a_schedule_that_stays_at_its_floor_since_the_first_epochs_is_told(trace_of, at):
    def program():
        model, steps = net(), 200
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        last = int(at * steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda i: 0.03 + 0.97 * (1 + math.cos(math.pi * min(i, last) / last)) / 2,
        )
        x, y = numbers(64), torch.arange(64) % 3
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()

    found = [f for f in judge(trace_of(program)) if f.fault == "schedule ends early"]

    assert [f.severity for f in found] == (["error"] if at < 1 else [])
    assert all("the rate is 3% of its largest" in f.what for f in found)


# ---- tables


def fit_table(learned, judged, *, from_loader=False):
    model = nn.Sequential(nn.Linear(learned.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = numbers(len(learned), 1, seed=7)
    batches = DataLoader(TensorDataset(learned, y), batch_size=100)
    for _ in range(2):
        rows = batches if from_loader else zip(learned.split(100), y.split(100), strict=True)
        for x, target in rows:
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
        with torch.no_grad():
            model(judged)


@pytest.mark.parametrize(
    ("spoil", "is_told"),
    [
        ("logarithm", True),
        ("nothing", False),
        ("trend", False),  # of a column that grows, in the rows that follow
        ("unrest", False),  # of all columns, as of markets in a crisis
    ],
)
def test_a_logarithm_that_is_taken_in_one_split_only_is_told(trace_of, spoil, is_told):
    learned, judged = numbers(1000, 7), numbers(300, 7, seed=2)
    raw = (1.0 + 0.6 * learned[:, 1]).exp()
    other = (1.0 + 0.6 * judged[:, 1]).exp()
    mean, deviation = raw.log1p().mean(), raw.log1p().std()
    learned[:, 1] = (raw.log1p() - mean) / deviation
    judged[:, 1] = ((other if spoil == "logarithm" else other.log1p()) - mean) / deviation
    if spoil == "trend":
        ramp = torch.linspace(-1.7, 1.7, 1000)
        learned[:, 2], judged[:, 2] = ramp, 1.7 + torch.linspace(0, 1.0, 300)
    elif spoil == "unrest":
        judged *= 1.9
        judged[:, 1] = 3 + 1.5 * judged[:, 1]

    trace = trace_of(lambda: fit_table(learned, judged))

    found = [f for f in judge(trace) if f.fault == "splits preprocessed differently"]
    assert bool(found) is is_told
    assert all("Column 1 " in f.what for f in found)


@pytest.mark.parametrize(
    ("sine", "cosine", "is_told"), [(0.0, 1.0, True), (0.0, None, True), (1.0, 1.0, False)]
)
def test_an_hour_that_is_always_midnight_is_a_constant_column(trace_of, sine, cosine, is_told):
    table = torch.cat([numbers(1200, 3) * 0.9 + 0.4, torch.rand(1200, 4)], 1)
    table[:, 3] = sine
    if cosine is not None:
        table[:, 4] = cosine

    trace = trace_of(lambda: fit_table(table, table[:300], from_loader=True))

    assert ("constant column" in {f.fault for f in judge(trace)}) is is_told


@pytest.mark.parametrize("is_made", [True, False])
def test_a_unit_that_rests_is_a_constant_column_of_no_data(trace_of, is_made):
    """As of an encoder whose features are standardised for a probe."""

    def program():
        features = numbers(256, columns=12)
        features[:, 7] = 0.0
        encoder = nn.Linear(5, 12 if is_made else 8)
        with torch.no_grad():
            encoder(numbers(256, columns=5))
        probe = nn.Linear(12, 3)
        optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
        for rows in features.split(32):
            optimizer.zero_grad()
            F.cross_entropy(probe(rows), rows[:, :3].argmax(1)).backward()
            optimizer.step()

    faults = {fault for fault, _, _ in told(trace_of(program))}

    assert ("constant column" in faults) == (not is_made)


@pytest.mark.parametrize("is_other_task", [True, False])
def test_a_column_that_varies_in_another_task_is_no_constant_one(trace_of, is_other_task):
    learned = numbers(1000, 12) * torch.arange(1, 13) + 3 * torch.arange(12)
    judged = numbers(300, 12, seed=2) * torch.arange(1, 13) + 3 * torch.arange(12)
    learned[:, 4] = 0
    if is_other_task:
        judged = judged[:, torch.arange(12).roll(5)]

    trace = trace_of(lambda: fit_table(learned, judged))

    assert ("constant column" in {f.fault for f in judge(trace)}) is not is_other_task


# ---- tokens


class Shifts(nn.Module):
    """A language model that shifts its input itself: its targets are what it is given."""

    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, 16))
        self.table, self.body = nn.Embedding(30, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, ids):
        before = torch.cat([self.start.expand(len(ids), 1, 16), self.table(ids[:, :-1])], 1)
        return self.head(self.body(before)[0])


@pytest.mark.parametrize("pad", [0, 1])
def test_an_end_that_is_the_pad_is_told_where_the_network_shifts_its_input(trace_of, pad):
    draws, end = torch.Generator().manual_seed(2), 0

    def batch():
        lengths = torch.randint(4, 11, (16,), generator=draws).tolist()
        rows = [[*torch.randint(2, 30, (n,), generator=draws).tolist(), end] for n in lengths]
        width = max(map(len, rows))
        return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])

    def program():
        model = Shifts()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(10):
            ids = batch()
            labels = ids.masked_fill(ids == pad, -100)
            optimizer.zero_grad()
            F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()

    found = {f for f in told(trace_of(program)) if f[0] == "end token never supervised"}

    assert found == ({("end token never supervised", "error", 1)} if pad == end else set())


# ---- batches, steps and checkpoints


@pytest.mark.parametrize(("divides", "passes"), [(False, 3), (True, 3), (False, 2)])
def test_losses_by_hand_that_are_added_up_undivided_are_told(trace_of, divides, passes):
    def program():
        model, x = nn.Linear(6, 1), numbers(600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            for rows in torch.randint(0, 600, (passes, 16), generator=DRAWS):
                loss = (model(x[rows])[:, 0] - x[rows].sum(1)).pow(2).mean()
                (loss / passes if divides else loss).backward()
            optimizer.step()

    found = [f for f in causes(trace_of(program)) if f.fault == "accumulation not normalised"]

    assert len(found) == (not divides and passes > 2)
    assert all("gradients of 3 batches" in f.what for f in found)


class Tidy(torch.optim.SGD):
    """Clears gradients itself after its update."""

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
        self.zero_grad()
        return loss


@pytest.mark.parametrize(
    "kind", ["after backward", "to None", "before forward", "by the optimizer"]
)
def test_a_closure_that_clears_what_it_brought_is_told(trace_of, kind):
    is_wrong = kind in ("after backward", "to None")

    def program():
        model, x = nn.Linear(6, 1), numbers(64)
        make = Tidy if kind == "by the optimizer" else torch.optim.SGD
        optimizer = make(model.parameters(), lr=0.01)

        def closure():
            if kind == "before forward":
                optimizer.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], x.sum(1))
            loss.backward()
            if is_wrong:
                optimizer.zero_grad(set_to_none=kind == "to None")
            return loss

        for _ in range(20):
            optimizer.step(closure)

    found = {f for f in told(trace_of(program)) if f[1] == "error"}

    assert found == ({("gradients cleared before the step", "error", 1)} if is_wrong else set())


@pytest.mark.parametrize("kind", ["forgotten", "loaded", "another rate"])
def test_an_optimizer_that_is_left_in_a_checkpoint_of_this_run_is_told(trace_of, tmp_path, kind):
    def fit(model, optimizer):
        x = numbers(64)
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            optimizer.step()

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        fit(model, optimizer)
        path = tmp_path / "state.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        state = torch.load(path)
        model.load_state_dict(state["model"])
        rate = 0.001 if kind == "another rate" else 0.01
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        if kind == "loaded":
            optimizer.load_state_dict(state["optimizer"])
        fit(model, optimizer)

    said = {s for fault, s, _ in told(trace_of(program)) if fault == "resume lost state"}

    assert said == {"forgotten": {"error"}, "loaded": set(), "another rate": {"confirm"}}[kind]


@pytest.mark.parametrize("kind", ["copied", "switched", "trained"])
def test_a_copy_of_a_network_that_was_judged_learns_in_evaluation_mode(trace_of, kind):
    def program():
        teacher, x, y = net(), numbers(64), torch.arange(64) % 3
        teacher(x)
        teacher.eval()
        student = copy.deepcopy(teacher)
        if kind == "switched":
            student(x)
            student.eval()
        elif kind == "trained":
            student.train()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
        for _ in range(10):
            optimizer.zero_grad()
            F.cross_entropy(student(x), y).backward()
            optimizer.step()

    said = {s for fault, s, _ in told(trace_of(program)) if fault == "training in evaluation mode"}

    assert said == {"copied": {"error"}, "switched": {"confirm"}, "trained": set()}[kind]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_call_on_all_rows_there_are_is_no_evaluation(trace_of, is_told):
    num = 150 if is_told else 3000

    def program():
        model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1)), numbers(3000)
        y = x.sum(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(30):
            rows = torch.randint(0, num, (40,), generator=DRAWS)
            optimizer.zero_grad()
            F.mse_loss(model(x[rows])[:, 0], y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            model(x[100:400] if is_told else x)

    found = {fault for fault, _, _ in told(trace_of(program))}

    assert ("validation rows in training" in found) is is_told


@pytest.mark.parametrize("copies", [True, False])
def test_copies_of_rows_that_are_far_apart_are_told_though_batches_hold_them_too(trace_of, copies):
    letters = torch.randint(0, 4, (500, 60), generator=torch.Generator().manual_seed(5))
    rows = F.one_hot(letters, 4).float()
    more = rows[:150].repeat(4, 1, 1)

    def program():
        model = nn.Sequential(nn.Flatten(), nn.Linear(240, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        mixed = torch.cat([rows, more])[torch.randperm(1100, generator=DRAWS)]
        learned, judged = mixed[:800], mixed[800:]
        if not copies:
            learned, judged = torch.cat([rows[:350], more]), rows[350:]
        for x in learned[torch.randperm(len(learned), generator=DRAWS)].split(50):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x[:, 0, 0]).backward()
            optimizer.step()
        with torch.no_grad():
            model(judged)

    found = {fault for fault, _, _ in told(trace_of(program))}

    assert ("validation rows in training" in found) is copies


@pytest.mark.parametrize(("bare", "severity"), [(16, {"error"}), (6, set())])
def test_a_batch_of_texts_without_a_target_is_told_also_of_a_sum(trace_of, bare, severity):
    def program():
        model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(20):
            ids = torch.randint(2, 30, (16, 12), generator=DRAWS)
            labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)
            labels[:, :6] = -100
            if i == 4:
                labels[:bare] = -100
            optimizer.zero_grad()
            loss = F.cross_entropy(
                model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
            )
            (loss / max(int((labels >= 0).sum()), 1)).backward()
            optimizer.step()

    said = {s for fault, s, _ in told(trace_of(program)) if fault == "nothing supervised"}

    assert said == severity


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(40 * torch.linspace(0, 1, 8).repeat(16, 1))
        self.weights = nn.Linear(16 * 8, 1)

    def forward(self, t):
        return self.weights(torch.sin(self.rates * t[:, None, None]).flatten(1))


def test_rows_of_a_parameter_that_part_slowly_are_not_the_same(trace_of):
    def program():
        model, t = Waves(), torch.rand(64, generator=DRAWS)
        slow = {"params": [model.rates], "lr": 0.02}
        optimizer = torch.optim.SGD([slow, {"params": model.weights.parameters()}], lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            F.mse_loss(model(t)[:, 0], (5 * t).cos()).backward()
            optimizer.step()

    assert "constant initialisation" not in {fault for fault, _, _ in told(trace_of(program))}


@pytest.mark.parametrize("columns", [2, 12])
def test_rows_of_two_short_numbers_are_equal_by_chance(trace_of, columns):
    is_leak = columns == 12
    x = (3 + numbers(8000, columns) / 2).bfloat16()
    if is_leak:
        x[6000:6100] = x[:100]

    def program():
        model = nn.Linear(columns, 1, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for rows in x[:6000].split(200):
            optimizer.zero_grad()
            F.mse_loss(model(rows)[:, 0], rows.sum(1)).backward()
            optimizer.step()
        with torch.no_grad():
            for rows in x[6000:].split(500):
                model(rows)

    found = {fault for fault, _, _ in told(trace_of(program))}

    assert ("validation rows in training" in found) is is_leak
