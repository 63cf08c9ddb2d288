"""Structure, masks, precision and dynamics: faults are named, what looks like one is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.case import Setup
from sluice.bench.tracer.data import PAD, sentences
from sluice.bench.tracer.faults.flow import FLOW_CASES, padded
from sluice.bench.tracer.faults.narrow import NARROW_CASES
from sluice.bench.tracer.faults.sight import SIGHT_CASES
from sluice.bench.tracer.nets import LanguageModel
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.unusual import UNUSUAL, fit, mlp, rows

CASES = {case.number: case for case in (*FLOW_CASES, *NARROW_CASES, *SIGHT_CASES)}


def causes(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def errors(trace):
    return [f.what for f in judge(trace) if f.severity == "error"]


@pytest.mark.parametrize(
    ("number", "net", "seed", "fault", "severity"),
    [
        (11, "mlp", 0, "padding mask inverted", "error"),
        (11, "transformer", 0, "padding mask inverted", "error"),
        (12, "cnn", 0, "later tokens leak", "error"),
        (16, "mlp", 0, "gradient cut", "error"),
        (16, "gru", 0, "gradient cut", "error"),
        (17, "mlp", 0, "module unregistered", "error"),
        (19, "mlp", 0, "frozen by mistake", "confirm"),
        (21, "mlp", 1, "loss without path", "error"),
        (24, "cnn", 0, "tie lost", "error"),
        (27, "mlp", 0, "gradients underflow", "error"),
        (28, "mlp", 0, "updates rounded away", "error"),
        (32, "mlp", 0, "non-finite gradient", "error"),
        (33, "mlp", 0, "constant initialisation", "error"),
        (33, "mlp", 1, "dead units", "error"),
    ],
)
def test_a_fault_is_the_first_cause_since_its_first_step(
    trace_of, tmp_path, number, net, seed, fault, severity
):
    setup = Setup(net=net, seed=seed, folder=tmp_path)

    found = causes(trace_of(lambda: CASES[number].program(setup)))

    assert found[0] == (fault, severity, 1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", CASES)
def test_the_twin_without_the_fault_has_no_error(trace_of, tmp_path, number):
    case = CASES[number]
    setup = Setup(net=case.nets[-1], seed=3, folder=tmp_path, has_fault=False)

    assert errors(trace_of(lambda: case.program(setup))) == []


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_looks_like_a_fault_is_none(trace_of, name):
    trace = trace_of(UNUSUAL[name])

    assert errors(trace) == []
    assert trace.notes == ()


def test_a_tie_that_is_lost_later_is_told_at_its_step(trace_of):
    def untied():
        ids = padded(sentences(0), 18)
        model = LanguageModel("gru")
        model.head.weight = model.embedding.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(16):
            if step == 9:
                model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
                optimizer.add_param_group({"params": [model.head.weight]})
            given = ids[step * 16 : step * 16 + 16]
            optimizer.zero_grad()
            logits = model(given[:, :-1]).flatten(0, 1)
            F.cross_entropy(logits, given[:, 1:].flatten(), ignore_index=PAD).backward()
            optimizer.step()

    assert ("tie lost", "error", 10) in causes(trace_of(untied))


@pytest.mark.parametrize(("trap", "refuses"), [(20, False), (121, False), (121, True)])
def test_the_first_gradient_that_is_not_finite_is_told_before_clipping_spreads_it(
    trace_of, trap, refuses
):
    """After the first steps the norm that a clip reads is what tells."""

    def trapped():
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(trap + 10):
            x, y = rows()
            if step == trap:
                x[1] = x[0]
            hidden = model[1](model[0](x))
            far = (hidden[0] - hidden[1]).pow(2).sum().sqrt()
            optimizer.zero_grad()
            (F.cross_entropy(model[2](hidden), y) + 0.01 * far).backward()
            try:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=refuses)
            except RuntimeError:
                return
            optimizer.step()

    trace = trace_of(trapped)
    (finding,) = (f for f in judge(trace) if f.fault == "non-finite gradient")

    assert causes(trace)[0] == ("non-finite gradient", "error", trap + 1)
    assert "2 of 4 parameters" in finding.what
    assert "Linear.bias" in finding.what


def test_an_encoder_that_runs_without_gradients_is_named(trace_of):
    def switched_off():
        encoder, head = nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
        for _ in range(12):
            x, y = rows()
            with torch.no_grad():
                z = encoder(x)
            optimizer.zero_grad()
            F.cross_entropy(head(z), y).backward()
            optimizer.step()

    trace = trace_of(switched_off)

    assert causes(trace)[0] == ("gradient cut", "error", 1)
    assert any(
        "between Sequential and Linear" in what or "no_grad" in what for what in errors(trace)
    )


def test_a_loss_that_explodes_is_one_cause(trace_of):
    def too_fast():
        model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        for _ in range(30):
            x, y = rows()
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], 10.0 * y).backward()
            optimizer.step()

    ((fault, severity, step), *others) = causes(trace_of(too_fast))

    assert (fault, severity) == ("rate too high", "error")
    assert step <= 4
    assert not [other for other in others if other[1] == "error"]


def test_weights_that_do_not_move_are_told(trace_of):
    def still():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
        for _ in range(12):
            x, y = rows()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    assert ("weights do not move", "error", 1) in causes(trace_of(still))


def test_a_loss_that_stays_and_a_gradient_that_fades_are_warnings(trace_of):
    def deep():
        layers = [layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
        model = nn.Sequential(*layers, nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for step in range(60):
            x, y = rows()
            optimizer.zero_grad()
            ((1 + 0.01 * step) * F.cross_entropy(model(x), y)).backward()
            optimizer.step()

    found = {(fault, severity) for fault, severity, _ in causes(trace_of(deep))}

    assert ("vanishing gradients", "warning") in found
    assert not [severity for _, severity in found if severity == "error"]


def test_a_loss_that_is_not_finite_is_an_error_only_when_it_stays(trace_of):
    def once(times):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(12):
            x, y = rows()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            # The weights are spared: only the number that is shown is not finite.
            (loss + (float("inf") if step in times else 0.0)).backward()
            optimizer.step()

    passing = causes(trace_of(lambda: once({3})))

    assert ("loss not finite", "warning", 4) in passing


def test_probes_draw_no_random_number_and_leave_the_network_alone(trace_of):
    states = []

    def watched():
        UNUSUAL["a tagger"]()
        states.append(torch.get_rng_state())

    trace = trace_of(watched)
    torch.manual_seed(0)
    UNUSUAL["a tagger"]()

    assert trace.probes == ()  # its dropout is always on: a copy says something else each time
    assert torch.equal(states[0], torch.get_rng_state())


def test_only_unused_parameters_are_left_out_in_peace(trace_of):
    trace = trace_of(lambda: fit(Unused()))

    assert [p.largest_effect for p in trace.probes if p.probe == "weights"] == [0.0]
    assert errors(trace) == []


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.extra = mlp(), nn.Linear(16, 2)

    def forward(self, x):
        self.extra(x)
        return self.net(x)
