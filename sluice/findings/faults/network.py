"""Faults of the network: its structure, modes, parameters and outputs."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

NetworkFault = Literal[
    "shape mismatch",
    "batch dependence",
    "nondeterministic predictions",
    "collapse",
    "few distinct predictions",
    "non-finite output",
    "dead units",
    "constant initialization",
    "detached subgraph",
    "unregistered module",
    "parameters not optimized",
    "stale optimizer parameters",
    "parameter in two optimizers",
    "unintended freeze",
    "misspelled requires_grad",
    "training in evaluation mode",
    "evaluation in training mode",
    "tied weights broken",
]

_fault = partial(Fault, topic="network")

NETWORK_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="shape-mismatch",
        name="shape mismatch",
        severity="error",
        description=(
            "Inputs, outputs or targets do not have the shapes that the network or the workload "
            "declares."
        ),
        cause=(
            "The model was built for a different number of features or outputs than the workload "
            "provides."
        ),
        fix=(
            "Build the model from the arguments num_features and num_outputs, and return an "
            "output of the shape that output_shape() declares."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="batch-dependence",
        name="batch dependence",
        severity="error",
        description="The prediction of an example depends on the other examples of its batch.",
        cause=(
            "forward() mixes the examples of a batch: a recurrent or transformer layer that treats "
            "axis 0 as time, a statistic over axis 0, or a reshape across axis 0."
        ),
        fix=(
            "Pass batch_first=True to recurrent, attention and transformer layers, and compute "
            "nothing over axis 0. Keep statistics of the data in buffers, as batch norm does."
        ),
        detectors=("POC gate", "tracer"),
    ),
    _fault(
        id="nondeterministic-predictions",
        name="nondeterministic predictions",
        severity="error",
        description="Two predictions of the same input differ in evaluation mode.",
        cause=(
            "forward() draws random numbers in eval mode, such as F.dropout without training=, or "
            "keeps state from the previous call."
        ),
        fix=(
            "Pass training=self.training to F.dropout, draw noise only while self.training is "
            "True, and start every forward() from a fresh state."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="collapse",
        name="collapse",
        severity="error",
        description="The network predicts almost the same value for every input.",
        cause=(
            "The features do not reach the output, or a high learning rate saturated the units of "
            "the network."
        ),
        fix="Check the scaling of the features, then lower learning_rate and weight_decay.",
        detectors=("POC gate",),
    ),
    _fault(
        id="few-distinct-predictions",
        name="few distinct predictions",
        severity="warning",
        description="The network returns only a few distinct values.",
        cause="The output is rounded, saturated, or depends only on one rare feature.",
        fix="Check the last layer for a sigmoid, tanh or clamp that saturates, or an integer cast.",
        detectors=("POC gate",),
    ),
    _fault(
        id="non-finite-output",
        name="non-finite output",
        severity="error",
        description="The network returns NaN or infinity.",
        cause="NaN or infinity in the weights or the features, or an overflow in forward().",
        fix="Check the initialisation and the features of the named rows.",
        detectors=(
            "POC gate",
            "rollout",
        ),
    ),
    _fault(
        id="dead-units",
        name="dead units",
        severity="error",
        description="Units of a layer are never active: they get no gradient and cannot recover.",
        cause=(
            "A layer has a large negative bias or an unsuitable initialisation, or the learning "
            "rate is too high."
        ),
        fix=(
            "Check the bias and the initialisation of the named layer, lower learning_rate, or "
            "use a leaky activation."
        ),
        detectors=(
            "POC gate",
            "tracer",
            "training diagnosis",
        ),
    ),
    _fault(
        id="constant-initialization",
        name="constant initialization",
        severity="error",
        description=(
            "All units of a layer start with equal weights: the layer is equivalent to one unit."
        ),
        cause=(
            "The weights are initialised with a constant: all units of a layer get equal gradients "
            "and never differ."
        ),
        fix="Initialise the weights randomly, as torch does by default.",
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="detached-subgraph",
        name="detached subgraph",
        severity="error",
        description="Parameters of the network get no gradient, so they keep their initial values.",
        cause=(
            "A parameter does not contribute to the loss: an unused layer, a detach(), or a "
            "no_grad() block."
        ),
        fix=(
            "Use the named parameters in forward(), remove the detach() or no_grad(), or delete "
            "the parameters."
        ),
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="unregistered-module",
        name="unregistered module",
        severity="error",
        description=(
            "A network calls modules that it does not register: parameters(), to(), train() and "
            "state_dict() do not include them."
        ),
        cause="The modules are in a plain list or dict.",
        fix="Use an nn.ModuleList or nn.ModuleDict.",
        detectors=("tracer",),
    ),
    _fault(
        id="parameters-not-optimized",
        name="parameters not optimized",
        severity="error",
        description=(
            "Trainable parameters belong to no optimizer, so they keep their initial values."
        ),
        cause=(
            "A trainable parameter is in no parameter group: a head that was replaced after the "
            "optimizer was created, or a missing group."
        ),
        fix="Put every trainable parameter into exactly one group of parameter_groups().",
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="stale-optimizer-parameters",
        name="stale optimizer parameters",
        severity="error",
        description=(
            "The optimizer contains the parameters of a layer that was replaced: the new layer "
            "never learns."
        ),
        cause="The layer was replaced after the optimizer was created.",
        fix=(
            "Create the optimizer after the network is complete, or add the new parameters with "
            "add_param_group()."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="parameter-in-two-optimizers",
        name="parameter in two optimizers",
        severity="error",
        description=(
            "A parameter is updated by two optimizers, with two independent sets of moments."
        ),
        cause="The parameter groups of the optimizers overlap.",
        fix="Add each parameter to one optimizer only.",
        detectors=("tracer",),
    ),
    _fault(
        id="unintended-freeze",
        name="unintended freeze",
        severity="confirm",
        description="Parameters are frozen, probably by mistake.",
        cause=(
            "Parameters are excluded from training (requires_grad is False) without being "
            "declared: a backbone that was left frozen, or a loop that froze too many parameters."
        ),
        fix="Set requires_grad, or name the parameters in the frozen_parameters of the workload.",
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="misspelled-requires-grad",
        name="misspelled requires_grad",
        severity="confirm",
        description=(
            "An attribute resembles requires_grad, and the parameters that it should freeze are "
            "trained."
        ),
        cause=(
            "torch reads only the requires_grad attribute of parameters; another name, or the "
            "same name on a module, has no effect."
        ),
        fix="Call requires_grad_(False) on the module or parameter.",
        detectors=("tracer",),
    ),
    _fault(
        id="training-in-evaluation-mode",
        name="training in evaluation mode",
        severity="error",
        description=(
            "A network is trained in evaluation mode: dropout is off, and batch norm does not "
            "update its statistics."
        ),
        cause=(
            "train() is not called after an evaluation, or the program received the network in "
            "evaluation mode."
        ),
        fix="Call model.train() at the start of each epoch and after each evaluation.",
        detectors=("tracer",),
    ),
    _fault(
        id="evaluation-in-training-mode",
        name="evaluation in training mode",
        severity="confirm",
        description=(
            "A network is evaluated in training mode: dropout makes the score noisy, and batch "
            "norm updates its statistics with evaluation data."
        ),
        cause="eval() is not called before the evaluation.",
        fix="Call model.eval() before an evaluation and model.train() after it.",
        detectors=("tracer",),
    ),
    _fault(
        id="tied-weights-broken",
        name="tied weights broken",
        severity="error",
        description=(
            "The weights of embedding and output layer should be one parameter, but are two "
            "parameters, which diverge."
        ),
        cause="One of the weights was replaced or copied after they were tied.",
        fix=(
            "After each change of the embedding or the output layer, assign the embedding's weight "
            "to the output layer."
        ),
        detectors=("tracer",),
    ),
)
