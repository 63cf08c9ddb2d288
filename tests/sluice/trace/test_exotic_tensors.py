"""Unusual tensors, inputs and networks: a traced program computes what the untraced one does.

The tables list programs with an unusual tensor at each place that the tracer inspects. An exception
of the program itself is a result, too.
"""

import copy
import functools
import io
import re
import warnings
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from sluice.trace.attach import traced
from sluice.trace.settings import TraceSettings

NUM_STEPS = 3
pytestmark = pytest.mark.filterwarnings("ignore")


class FunctionTensor(Tensor):
    """A subclass with ``__torch_function__``."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class WrapperTensor(Tensor):
    """A subclass with ``__torch_dispatch__``, which has no storage of its own."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, cls) else value

        def wrap(value):
            return cls(value) if isinstance(value, Tensor) else value

        return tree_map(wrap, function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {})))


def nested():
    return torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)])


def jagged():
    parts = [torch.randn(3, 4), torch.randn(2, 4)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


TENSORS = {
    "float16": lambda: torch.randn(6, 4).half(),
    "bfloat16": lambda: torch.randn(6, 4).bfloat16(),
    "float64": lambda: torch.randn(6, 4).double(),
    "complex64": lambda: torch.randn(6, 4, dtype=torch.complex64),
    "int8": lambda: torch.randint(-4, 4, (6, 4), dtype=torch.int8),
    "uint8": lambda: torch.randint(0, 9, (6, 4), dtype=torch.uint8),
    "uint16": lambda: torch.randint(0, 9, (6, 4)).to(torch.uint16),
    "bool": lambda: torch.rand(6, 4) > 0.5,
    "float8_e4m3fn": lambda: torch.randn(6, 4).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: torch.randn(6, 4).to(torch.float8_e5m2),
    "float8 image": lambda: torch.randn(6, 3, 8, 8).to(torch.float8_e4m3fn),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(6, 4), 0.1, 0, torch.qint8),
    "sparse COO": lambda: torch.randn(6, 4).to_sparse(),
    "uncoalesced": lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (6, 4)),
    "sparse CSR": lambda: torch.randn(6, 4).to_sparse_csr(),
    "nested": nested,
    "jagged": jagged,
    "meta": lambda: torch.randn(6, 4, device="meta"),
    "meta indices": lambda: torch.zeros(6, 4, dtype=torch.long, device="meta"),
    "no rows": lambda: torch.randn(0, 4),
    "no columns": lambda: torch.randn(6, 0),
    "0-dim": lambda: torch.randn(()),
    "0-dim integer": lambda: torch.tensor(1),
    "1-dim": lambda: torch.randn(4),
    "non-contiguous": lambda: torch.randn(4, 6).t(),
    "strided": lambda: torch.randn(12, 8)[::2, ::2],
    "expanded": lambda: torch.randn(1, 4).expand(6, 4),
    "conjugate view": lambda: torch.randn(6, 4, dtype=torch.complex64).conj(),
    "negative view": lambda: torch.randn(6, 4, dtype=torch.complex64).conj().imag,
    "inference": lambda: _inference_tensor(),
    "__torch_function__": lambda: torch.randn(6, 4).as_subclass(FunctionTensor),
    "__torch_dispatch__": lambda: WrapperTensor(torch.randn(6, 4)),
    "nan": lambda: torch.full((6, 4), float("nan")),
}


def _inference_tensor():
    with torch.inference_mode():
        return torch.randn(6, 4)


def to_rows(value):
    """Convert a tensor to a dense float tensor of 6 rows and 4 columns, as a network could."""
    if isinstance(value, WrapperTensor):
        value = value.inner
    if value.is_nested:
        value = torch.cat([part.float() for part in value.unbind()])
    if value.is_quantized:
        value = value.dequantize()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_meta:
        value = torch.zeros(value.shape)
    if value.is_complex():
        value = value.real
    value = value.as_subclass(Tensor).float().flatten().nan_to_num()
    return F.pad(value, (0, max(0, 24 - value.numel())))[:24].reshape(6, 4)


class Network(nn.Module):
    """Convert the input to rows of floats and apply a linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, value, _other=None):
        return self.layer(to_rows(value))


def train(network, compute_loss, *, optimizer=None, before_step=lambda: None):
    """Train with SGD; return the network."""
    optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        compute_loss(network).backward()
        before_step()
        optimizer.step()
    return network


def as_input(make):
    return train(Network(), lambda network: network(make()).square().mean())


def as_input_without_gradients(make):
    network = train(Network(), lambda network: network(make()).square().mean())
    network.eval()
    with torch.no_grad():
        for _ in range(3):
            network(make())
    return network


def as_second_input(make):
    return train(Network(), lambda network: network(torch.randn(6, 4), make()).square().mean())


def as_direct_input(make):
    return train(nn.Linear(4, 3), lambda network: network(make()).float().square().mean())


def as_embedding_input(make):
    return train(nn.Embedding(9, 3), lambda network: network(make()).square().mean())


def as_regression_target(make):
    return train(nn.Linear(5, 4), lambda n: F.mse_loss(n(torch.randn(6, 5)), make()))


def as_class_target(make):
    return train(nn.Linear(5, 4), lambda n: F.cross_entropy(n(torch.randn(6, 5)), make()))


def as_class_targets_of_positions(make):
    network = nn.Linear(5, 9)
    return train(network, lambda n: F.cross_entropy(n(torch.randn(24, 5)), make().flatten().long()))


def as_binary_target(make):
    return train(
        nn.Linear(5, 4),
        lambda n: F.binary_cross_entropy_with_logits(n(torch.randn(6, 5)), make()),
    )


def as_loss_input(make):
    """The tensor is input and target of loss functions whose results are not trained."""

    def compute_loss(network):
        for function in (F.mse_loss, F.l1_loss, F.kl_div, F.cross_entropy):
            try:
                function(make(), make())
            except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
                continue
        return network(torch.randn(6, 4)).square().mean()

    return train(nn.Linear(4, 1), compute_loss)


def as_loss_factor(make):
    return train(
        nn.Linear(5, 4),
        lambda n: (
            (F.mse_loss(n(torch.randn(6, 5)), torch.zeros(6, 4), reduction="none") * make())
            .sum()
            .real
        ),
    )


def as_loss(make):
    """The loss itself has the dtype or the type of the tensor."""

    def compute_loss(network):
        loss, like = network(torch.randn(6, 4)).square().mean(), make()
        if isinstance(like, FunctionTensor):
            return loss.as_subclass(FunctionTensor)
        return loss.to(like.dtype).to(like.device)

    return train(nn.Linear(4, 1), compute_loss)


def as_buffer(make):
    network = Network()
    network.register_buffer("buffer", make())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    train(network, lambda n: n(torch.randn(6, 4)).square().mean(), optimizer=optimizer)
    state = network.state_dict()
    torch.save({"network": state, "optimizer": optimizer.state_dict()}, io.BytesIO())
    network.load_state_dict(state)
    network.load_state_dict(copy.deepcopy(state))
    return train(network, lambda n: n(torch.randn(6, 4)).square().mean())


def as_unused_parameter(make):
    value, network = make(), Network()
    is_trainable = value.is_floating_point() or value.is_complex()
    network.extra = nn.Parameter(value, requires_grad=is_trainable)
    train(network, lambda n: n(torch.randn(6, 4)).square().mean())
    network.load_state_dict(network.state_dict())
    return train(network, lambda n: n(torch.randn(6, 4)).square().mean())


def as_parameter(make):
    network = Network()
    network.extra = nn.Parameter(make())
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    return train(
        network,
        lambda n: n(torch.randn(6, 4)).square().mean() + to_rows(n.extra).square().sum(),
        optimizer=optimizer,
    )


def as_gradient(make):
    network, value = Network(), make()
    is_trainable = value.is_floating_point() or value.is_complex()
    network.extra = nn.Parameter(torch.zeros_like(value), requires_grad=is_trainable)

    def set_gradient():
        network.extra.grad = make()

    return train(network, lambda n: n(torch.randn(6, 4)).square().mean(), before_step=set_gradient)


def as_clipped_gradient(make):
    network, value = Network(), make()
    network.extra = nn.Parameter(torch.zeros_like(value))

    def set_gradient():
        network.extra.grad = make()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)

    return train(network, lambda n: n(torch.randn(6, 4)).square().mean(), before_step=set_gradient)


def as_accumulated_gradient(make):
    network = Network()
    network.extra = nn.Parameter(make())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            loss = network(torch.randn(6, 4)).square().mean() + to_rows(network.extra).sum()
            loss.backward()
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter.grad /= 2
        optimizer.step()
    return network


def as_batch(make):
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loader = DataLoader([0, 1, 2], collate_fn=lambda _: (make(), make()))
    for _ in range(2):
        for values, _ in loader:
            optimizer.zero_grad()
            network(values).square().mean().backward()
            optimizer.step()
    return network


def as_manual_update(make):
    """A training without an optimizer and without a module."""
    weights = nn.Parameter(torch.randn(4, 3))
    for _ in range(NUM_STEPS):
        loss = (to_rows(make()) @ weights).square().mean()
        loss.backward()
        with torch.no_grad():
            weights -= 0.1 * weights.grad
            weights.grad = None
    return weights


PLACES = {
    function.__name__.removeprefix("as_").replace("_", " "): function
    for function in (
        as_input,
        as_input_without_gradients,
        as_second_input,
        as_direct_input,
        as_embedding_input,
        as_regression_target,
        as_class_target,
        as_class_targets_of_positions,
        as_binary_target,
        as_loss_input,
        as_loss_factor,
        as_loss,
        as_buffer,
        as_unused_parameter,
        as_parameter,
        as_gradient,
        as_clipped_gradient,
        as_accumulated_gradient,
        as_batch,
        as_manual_update,
    )
}


@dataclass
class Batch:
    """A batch as a dataclass."""

    values: Tensor
    target: Tensor


Pair = namedtuple("Pair", ["values", "target"])


class Reading(nn.Module):
    """Apply a linear layer to the tensor that a function finds in the inputs."""

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = nn.Linear(4, 3), read

    def forward(self, *args, **kwargs):
        return self.layer(self.read(*args, **kwargs))


def train_reading(make_inputs, read, **named):
    return train(Reading(read), lambda network: network(*make_inputs(), **named).square().mean())


def pair():
    return torch.randn(6, 4), torch.zeros(6, dtype=torch.long)


def dict_input():
    return train_reading(lambda: [dict(zip("xy", pair(), strict=True))], lambda batch: batch["x"])


def tuple_input():
    return train_reading(lambda: [pair()], lambda batch: batch[0])


def dataclass_input():
    return train_reading(lambda: [Batch(*pair())], lambda batch: batch.values)


def named_tuple_input():
    return train_reading(lambda: [Pair(*pair())], lambda batch: batch.values)


def no_input():
    return train_reading(lambda: [None], lambda _: torch.ones(6, 4))


def no_arguments():
    return train_reading(list, lambda: torch.ones(6, 4))


def keyword_inputs():
    values = torch.randn(6, 4)
    return train_reading(list, lambda values, scale: values * scale, values=values, scale=2)


def several_outputs():
    network = nn.LSTM(4, 3, batch_first=True)
    return train(network, lambda network: network(torch.randn(2, 5, 4))[0].square().mean())


def no_output():
    network, outputs = Reading(lambda values: values), []
    network.register_forward_hook(lambda *call: outputs.append(call[-1]))

    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, values):
            self.inner(values)

    def compute_loss(silent):
        assert silent(torch.randn(6, 4)) is None
        return outputs.pop().square().mean()

    return train(Silent(), compute_loss)


def lazy_layer():
    network = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))
    network(torch.randn(6, 4))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def lazy_layer_initialized_in_training():
    network = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def unused_lazy_layers():
    network = Network()
    network.unused = nn.ModuleList([nn.LazyLinear(3), nn.LazyConv2d(3, 2), nn.LazyBatchNorm1d()])
    train(network, lambda network: network(torch.randn(6, 4)).square().mean())
    network.load_state_dict(network.state_dict())
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def unregistered_lazy_layer():
    network = Network()
    network.layers = [nn.LazyLinear(3)]
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def functional_call():
    network = Network()
    weights = {n: nn.Parameter(p.detach().clone()) for n, p in network.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)

    def compute_loss(network):
        return torch.func.functional_call(network, weights, torch.randn(6, 4)).square().mean()

    train(network, compute_loss, optimizer=optimizer)
    return nn.ParameterDict({name.replace(".", "_"): value for name, value in weights.items()})


def function_gradients():
    network = Network()
    weights = {name: p.detach().clone() for name, p in network.named_parameters()}

    def compute_loss(weights, values):
        output = torch.func.functional_call(network, weights, values)
        return F.mse_loss(output, torch.zeros(6, 3))

    for _ in range(NUM_STEPS):
        gradients = torch.func.grad(compute_loss)(weights, torch.randn(6, 4))
        weights = {name: weights[name] - 0.1 * gradients[name] for name in weights}
    return [*weights.values()]


def gradients_of_each_row():
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def compute_loss(weights, row):
        return torch.func.functional_call(network, weights, row).square().mean()

    for _ in range(NUM_STEPS):
        weights = {name: p.detach() for name, p in network.named_parameters()}
        row_gradients = torch.func.vmap(torch.func.grad(compute_loss), (None, 0))(
            weights, torch.randn(6, 4)
        )
        for name, parameter in network.named_parameters():
            parameter.grad = row_gradients[name].mean(0)
        optimizer.step()
    return network


def jacobian():
    network = nn.Linear(4, 3)

    def compute_loss(network):
        return torch.func.jacrev(network)(torch.randn(4)).square().mean()

    return train(network, compute_loss)


def second_derivative():
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def compute_loss(network):
        values = torch.randn(6, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(network(values).sum(), values, create_graph=True)
        return gradient.square().mean()

    return train(network, compute_loss)


def weight_norm():
    network = parametrizations.weight_norm(nn.Linear(4, 3))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def orthogonal():
    network = parametrizations.orthogonal(nn.Linear(4, 4))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def spectral_norm():
    network = parametrizations.spectral_norm(nn.Linear(4, 3))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def parametrization_removed_during_training():
    network = parametrizations.weight_norm(nn.Linear(4, 3))
    train(network, lambda network: network(torch.randn(6, 4)).square().mean())
    parametrize.remove_parametrizations(network, "weight")
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def shared_parameters():
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    network[2].weight = network[0].weight
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def shared_modules():
    layer = nn.Linear(4, 4)
    network = nn.Sequential(layer, nn.Tanh(), layer)
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def parameter_views():
    network, flat_weights = nn.Linear(4, 3), nn.Parameter(torch.randn(12))
    network.weight = nn.Parameter(flat_weights.data.view(3, 4))
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def parameters_replaced():
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def replace():
        network.layer.weight = nn.Parameter(network.layer.weight.detach().clone())

    return train(
        network,
        lambda network: network(torch.randn(6, 4)).square().mean(),
        optimizer=optimizer,
        before_step=replace,
    )


def parameters_resized():
    network = nn.Linear(4, 3)
    for width in (3, 5, 2):
        network.weight.data, network.bias.data = torch.randn(width, 4), torch.randn(width)
        network.weight.grad = network.bias.grad = None
        train(network, lambda network: network(torch.randn(6, 4)).square().mean())
    return network


def parameters_converted():
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.float32):
        optimizer.zero_grad()
        network.to(dtype)
        values = torch.randn(6, 4).to(dtype)
        network(values).square().mean().backward()
        optimizer.step()
    return network


def parameters_removed():
    network = nn.Linear(4, 3)
    train(network, lambda network: network(torch.randn(6, 4)).square().mean())
    network.bias = None
    train(network, lambda network: network(torch.randn(6, 4)).square().mean())
    del network.weight
    network.weight = torch.randn(3, 4, requires_grad=True)
    network(torch.randn(6, 4)).square().mean().backward()
    return [network.weight, network.weight.grad]


def meta_network_made_empty():
    with torch.device("meta"):
        network = nn.Linear(4, 3)
    network(torch.randn(6, 4, device="meta")).square().mean().backward()
    network.to_empty(device="cpu")
    for parameter in network.parameters():
        nn.init.ones_(parameter)
        parameter.grad = None
    return train(network, lambda network: network(torch.randn(6, 4)).square().mean())


def meta_network_in_an_optimizer():
    with torch.device("meta"):
        network = nn.Linear(4, 3)
        train(network, lambda network: F.mse_loss(network(torch.randn(6, 4)), torch.zeros(6, 3)))
    return [train(nn.Linear(4, 3), lambda network: network(torch.randn(6, 4)).square().mean())]


def sparse_gradients():
    network = nn.Embedding(9, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(network.parameters(), lr=0.1)
    return train(
        network, lambda n: n(torch.randint(9, (6, 4))).square().mean(), optimizer=optimizer
    )


def complex_network():
    network = nn.Linear(4, 3, dtype=torch.complex64)
    return train(
        network, lambda n: n(torch.randn(6, 4, dtype=torch.complex64)).abs().square().mean()
    )


def failed_backward_passes():
    def compute_loss(network):
        with pytest.raises(RuntimeError, match="scalar"):
            network(torch.randn(6, 4)).backward()
        return network(torch.randn(6, 4)).square().mean()

    return train(Network(), compute_loss)


def several_losses():
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        losses = (network(torch.randn(6, 4)).square().mean() for _ in range(2))
        torch.autograd.backward(losses)
        optimizer.step()
    return network


def changed_in_place():
    """The program changes inputs and targets in place after the forward pass."""
    network = Network()

    def compute_loss(network):
        values = torch.randn(6, 4)
        loss = F.mse_loss(network(values + 0), torch.zeros(6, 3))
        values.resize_(0)
        return loss

    return train(network, compute_loss)


PROGRAMS = {
    function.__name__.replace("_", " "): function
    for function in (
        dict_input,
        tuple_input,
        dataclass_input,
        named_tuple_input,
        no_input,
        no_arguments,
        keyword_inputs,
        several_outputs,
        no_output,
        lazy_layer,
        lazy_layer_initialized_in_training,
        unused_lazy_layers,
        unregistered_lazy_layer,
        functional_call,
        function_gradients,
        gradients_of_each_row,
        jacobian,
        second_derivative,
        weight_norm,
        orthogonal,
        spectral_norm,
        parametrization_removed_during_training,
        shared_parameters,
        shared_modules,
        parameter_views,
        parameters_replaced,
        parameters_resized,
        parameters_converted,
        parameters_removed,
        meta_network_made_empty,
        meta_network_in_an_optimizer,
        sparse_gradients,
        complex_network,
        failed_backward_passes,
        several_losses,
        changed_in_place,
    )
}


NONDETERMINISTIC = {("embedding input", "meta indices")}
"""Programs whose gradients are uninitialized memory."""


def outcome_of(program):
    """Return the bytes of the final weights of a program, or its exception."""
    torch.manual_seed(0)
    try:
        result = program()
    except Exception as error:
        # The lengths of nested tensors are numbered: j1, j2, ...
        return re.sub(r"\bj\d+", "j", f"{type(error).__name__}: {error}")
    if isinstance(result, Tensor | nn.Module):
        result = [result]
    tensors = []
    for item in result:
        tensors += [item] if isinstance(item, Tensor) else item.parameters()
    return [_bytes(tensor) for tensor in tensors]


def _bytes(tensor):
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
        return "uninitialized"
    tensor, content = tensor.detach(), io.BytesIO()
    if isinstance(tensor, WrapperTensor):
        tensor = tensor.inner
    if tensor.is_nested:
        tensor = torch.cat([*tensor.unbind()])
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    torch.save(tensor.as_subclass(Tensor).clone(), content)
    return content.getvalue()


@pytest.fixture
def find_defects(tmp_path):
    """Return a function that compares traced programs with the untraced ones.

    The programs run in one trace, because each new trace searches all objects for optimizers. After
    a failure of the tracer, the next programs run in a new trace.
    """

    def run(programs, **settings):
        expected = {name: outcome_of(program) for name, program in programs.items()}
        defects, names = [], list(programs)
        while names:
            messages = []
            with traced(
                tmp_path / str(len(names)),
                TraceSettings(flush_s=0, **settings),
                print_line=messages.append,
            ):
                while names and not messages:
                    name = names.pop(0)
                    outcome = outcome_of(programs[name])
                    if outcome != expected[name]:
                        defects.append(f"{name}: {_difference(outcome, expected[name])}")
            defects += [f"{name}: {message}" for message in messages]
        return defects

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield run
    torch.set_num_threads(threads)


def _difference(outcome, expected):
    if str in (type(outcome), type(expected)):
        return f"{str(outcome)[:200]} instead of {str(expected)[:200]}"
    return "other weights"


@pytest.mark.parametrize("tensor", TENSORS)
def test_an_unusual_tensor_does_not_end_the_trace(find_defects, tensor):
    make = TENSORS[tensor]
    programs = {
        place: functools.partial(run, make)
        for place, run in PLACES.items()
        if (place, tensor) not in NONDETERMINISTIC
    }
    assert not find_defects(programs)


def test_unusual_programs_do_not_end_the_trace(find_defects):
    assert not find_defects(PROGRAMS)


@pytest.mark.parametrize("tensor", ["float8_e4m3fn", "meta"])
def test_the_nonfinite_guard_supports_unusual_tensors(find_defects, tensor):
    make = TENSORS[tensor]
    programs = {place: functools.partial(run, make) for place, run in PLACES.items()}
    assert not find_defects(programs, stop_after=100)


def test_the_nonfinite_guard_supports_unusual_programs(find_defects):
    assert not find_defects(PROGRAMS, stop_after=100)
