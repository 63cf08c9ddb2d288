"""Networks of plain tensors: their inputs and manual updates are recorded (TRACE-2)."""

import gc

import pytest
import torch
from torch.nn import functional as F

from sluice.trace.attach import traced
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings

ROWS, COLUMNS, NUM_HELD_OUT = 1200, 6, 200


def make_generator(seed=1):
    return torch.Generator().manual_seed(seed)


def make_parameter(*shape, seed=1):
    return (torch.randn(shape, generator=make_generator(seed)) * 0.4).requires_grad_()


def make_inputs(fault="", shape=(ROWS, COLUMNS)):
    """Return rows and targets, with an optional fault."""
    x = torch.randn(shape, generator=make_generator())
    y = (x.flatten(1)[:, 0] * 2 - x.flatten(1)[:, 1]).sign()
    if fault == "constant":
        x[..., 4] = 0
    if fault == "nan":
        x[70, ..., 2] = torch.nan
    if fault == "permuted":
        y = y[torch.randperm(len(y), generator=make_generator(3))]
    if fault == "scaled":
        x[-NUM_HELD_OUT:] = x[-NUM_HELD_OUT:] * 20 + 3
    if fault == "leaked":
        x[-NUM_HELD_OUT // 2 :], y[-NUM_HELD_OUT // 2 :] = (
            x[: NUM_HELD_OUT // 2],
            y[: NUM_HELD_OUT // 2],
        )
    return x, y


def optimizer_update(parameters, rate=0.01):
    optimizer = torch.optim.Adam(parameters, lr=rate)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return step


def manual_update(parameters, rate=0.05, clears=True):
    def step():
        with torch.no_grad():
            for p in parameters:
                p -= rate * p.grad
                if clears:
                    p.grad = None

    return step


def mean_squared_error(values, targets):
    return F.mse_loss(values, targets)


def fit(net, parameters, x, y, update=optimizer_update, loss=mean_squared_error, epochs=2):
    step = update(parameters)
    for _ in range(epochs):
        order = torch.randperm(len(x) - NUM_HELD_OUT, generator=make_generator(2))
        for rows in order.split(25):
            loss(net(x[rows]), y[rows]).backward()
            step()
        with torch.no_grad():
            loss(net(x[-NUM_HELD_OUT:]), y[-NUM_HELD_OUT:])
    return parameters


def mlp(fault="", **options):
    x, y = make_inputs(fault)
    p = [make_parameter(COLUMNS, 16), make_parameter(16), make_parameter(16, 1, seed=2)]
    return fit(lambda x: (torch.tanh(x @ p[0] + p[1]) @ p[2])[:, 0], p, x, y, **options)


def transposed(fault="", **options):
    """Weights with the outputs first, as for F.linear."""
    x, y = make_inputs(fault)
    p = [make_parameter(16, COLUMNS), make_parameter(16), make_parameter(1, 16, seed=2)]
    return fit(lambda x: F.linear(F.linear(x, *p[:2]).tanh(), p[2])[:, 0], p, x, y, **options)


def product(fault="", **options):
    x, y = make_inputs(fault)
    p = [make_parameter(COLUMNS), make_parameter(1)]
    return fit(lambda x: (x * p[0]).sum(1) + p[1], p, x, y, **options)


def columns_last(fault="", **options):
    x, y = make_inputs(fault)
    p = [make_parameter(16, COLUMNS), make_parameter(1, 16, seed=2)]
    return fit(lambda x: (p[1] @ torch.tanh(p[0] @ x.T))[0], p, x, y, **options)


def cell(fault="", *, joined=False, **options):
    """A recurrent cell, whose state has no gradient at the first step."""
    x, y = make_inputs(fault, (ROWS, 5, COLUMNS))
    p = [make_parameter(COLUMNS, 12), make_parameter(12, 12, seed=2), make_parameter(12, 1, seed=3)]
    if joined:
        p = [torch.cat(p[:2]).detach().requires_grad_(), p[2]]

    def net(x):
        h = torch.zeros(len(x), 12)
        for step_input in x.unbind(1):
            h = torch.cat([step_input, h], 1) @ p[0] if joined else step_input @ p[0] + h @ p[1]
            h = torch.tanh(h)
        return (h @ p[-1])[:, 0]

    return fit(net, p, x, y, **options)


def joined_cell(fault="", **options):
    return cell(fault, joined=True, **options)


def embeddings_and_floats(fault="", **options):
    """Embeddings of categories, concatenated with float inputs."""
    x, y = make_inputs(fault)
    ids = torch.randint(0, 9, (ROWS,), generator=make_generator())
    p = [make_parameter(9, 3), make_parameter(COLUMNS + 3, 16), make_parameter(16, 1, seed=2)]

    def net(x):
        embedded = F.embedding(ids[: len(x)], p[0])
        return (torch.tanh(torch.cat([embedded, x], 1) @ p[1]) @ p[2])[:, 0]

    return fit(net, p, x, y, **options)


NETS = (mlp, transposed, product, columns_last, cell, joined_cell)


def error_faults(trace):
    """Return the root faults of severity error; the trace has no failure of the tracer."""
    assert not any(note.kind == "failed" for note in trace.notes)
    found = diagnose(judge(trace))
    return {d.finding.fault for d in found if d.finding.severity == "error"}


@pytest.mark.parametrize("net", [*NETS, embeddings_and_floats])
@pytest.mark.parametrize("update", [optimizer_update, manual_update])
def test_a_correct_functional_model_has_no_error(trace_of, net, update):
    trace = trace_of(lambda: net(update=update))

    assert error_faults(trace) == set()
    assert trace.num_steps == 2 * (ROWS - NUM_HELD_OUT) // 25
    assert {f.is_learning for f in trace.inputs} == {True, False}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("constant", "constant column"),
        ("nan", "non-finite input"),
        ("permuted", "shuffled labels"),
        ("scaled", "preprocessing skew"),
        ("leaked", "train-validation leakage"),
    ],
)
def test_an_input_fault_of_a_functional_model_is_reported(trace_of, net, fault, name):
    assert name in error_faults(trace_of(lambda: net(fault)))


@pytest.mark.parametrize("fault", ["constant", "nan"])
def test_faults_of_float_inputs_next_to_embeddings_are_reported(trace_of, fault):
    name = {"constant": "constant column", "nan": "non-finite input"}[fault]

    assert name in error_faults(trace_of(lambda: embeddings_and_floats(fault)))


def test_class_targets_that_a_custom_loss_indexes_with_are_recorded(trace_of):
    x, y = make_inputs("permuted")
    p = [make_parameter(COLUMNS, 16), make_parameter(16, 2, seed=2)]

    def loss(logits, classes):
        return -F.log_softmax(logits, 1)[torch.arange(len(classes)), classes].mean()

    def program():
        for _ in range(5):
            fit(lambda x: torch.tanh(x @ p[0]) @ p[1], p, x, (y > 0).long(), loss=loss)

    trace = trace_of(program)

    assert {f.kind for f in trace.target_samples} == {"cross_entropy"}
    assert sum(len(f.rows) for f in trace.target_samples) >= 400


@pytest.mark.parametrize("clears", [True, False])
def test_manual_updates_that_do_not_clear_gradients_need_confirmation(trace_of, clears):
    def update(parameters):
        return manual_update(parameters, rate=1e-3, clears=clears)

    trace = trace_of(lambda: mlp(update=update))

    found = {(d.finding.fault, d.finding.severity) for d in diagnose(judge(trace))}
    assert (("missing zero_grad", "confirm") in found) != clears


def test_manual_updates_of_large_tables_are_steps(trace_of):
    def program():
        p = [make_parameter(600, 32), make_parameter(600, 32, seed=2)]
        step = manual_update(p)
        ids = torch.randint(0, 600, (2, 400), generator=make_generator())
        for first_ids, second_ids in (rows.unbind() for rows in ids.split(20, 1)):
            ((p[0][first_ids] * p[1][second_ids]).sum(1) - 1).square().mean().backward()
            step()

    trace = trace_of(program)

    assert trace.num_steps == 20
    assert [f.shape for f in trace.inputs][:1] == [(20,)]


def test_each_fold_is_recorded_as_a_separate_network(trace_of):
    x, y = make_inputs()

    def program():
        for fold in range(3):
            is_held_out = torch.arange(ROWS) % 3 == fold
            rows = (
                torch.cat([x[~is_held_out], x[is_held_out][:NUM_HELD_OUT]]),
                torch.cat([y[~is_held_out], y[is_held_out][:NUM_HELD_OUT]]),
            )
            p = [make_parameter(COLUMNS, seed=fold)]
            fit(lambda x, p=p: x @ p[0], p, *rows, update=manual_update, epochs=5)

    trace = trace_of(program)

    assert error_faults(trace) == set()
    # Every network but the first is detected once the previous one has not changed for some passes.
    assert 0 <= 3 * 5 * 800 // 25 - trace.num_steps <= 2 * 32
    assert len({f.network for f in trace.inputs}) == 3


def test_weights_recreated_for_each_pass_are_recorded_as_one_network(trace_of):
    x, y = make_inputs("constant")

    def program():
        w = make_parameter(COLUMNS)
        for rows, targets in zip(x.split(50), y.split(50), strict=True):
            (rows @ w - targets).square().mean().backward()
            w = (w - 0.05 * w.grad).detach().requires_grad_()

    trace = trace_of(program)

    assert error_faults(trace) == {"constant column"}
    assert len({f.network for f in trace.inputs}) == 2  # the first one remains after the steps


def test_a_program_with_modules_is_not_treated_as_functional(trace_of):
    model, w = torch.nn.Linear(COLUMNS, 4), make_parameter(4)
    x, y = make_inputs()

    def program():
        fit(lambda x: torch.tanh(model(x)) @ w, [*model.parameters(), w], x, y)

    trace = trace_of(program)

    assert {n.kind for n in trace.membership.networks} == {"Linear"}
    assert torch.no_grad.__enter__.__module__.startswith("torch")


@pytest.mark.parametrize("net", [*NETS, embeddings_and_floats])
@pytest.mark.parametrize("update", [optimizer_update, manual_update])
def test_functional_models_train_bit_identically_while_traced(tmp_path, net, update):
    untraced = net(update=update)
    state = torch.get_rng_state()
    blocks = torch.no_grad.__enter__, torch.no_grad.__exit__
    with traced(tmp_path, TraceSettings(flush_s=0)):
        traced_parameters = net(update=update)

    assert all(torch.equal(a, b) for a, b in zip(untraced, traced_parameters, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.no_grad.__enter__, torch.no_grad.__exit__) == blocks
    assert not torch._C._len_torch_function_stack()


def test_a_trace_that_ends_inside_a_block_stops_recording(tmp_path):
    x, _ = make_inputs()
    p = mlp()
    with torch.no_grad():
        with torch.enable_grad(), traced(tmp_path, TraceSettings()):
            mlp()
            block = torch.no_grad()
            block.__enter__()
        assert not torch._C._len_torch_function_stack()
        assert torch.isfinite(x @ p[0]).all()
        block.__exit__(None, None, None)


def test_inputs_of_sequences_of_varying_lengths_are_freed_inside_a_block(tmp_path):
    p = [make_parameter(COLUMNS, 12), make_parameter(12, 12, seed=2), make_parameter(12, 1, seed=3)]
    num_rows = 33  # of the evaluation only, so that its inputs are recognized by their shape

    def net(x):
        h = torch.zeros(len(x), 12)
        for step_input in x.unbind(1):
            h = torch.tanh(step_input @ p[0] + h @ p[1])
        return (h @ p[2])[:, 0]

    with traced(tmp_path, TraceSettings(flush_s=0)):
        for length in (3, 5, 3, 5):
            net(torch.randn(20, length, COLUMNS)).square().mean().backward()
        with torch.no_grad():
            net(torch.randn(num_rows, 4, COLUMNS))
            is_observed = torch._C._len_torch_function_stack() == 1
            num_kept = sum(
                type(obj) is torch.Tensor and obj.shape == (num_rows, COLUMNS)
                for obj in gc.get_objects()
            )

    assert is_observed
    assert num_kept == 0
