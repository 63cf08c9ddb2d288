"""Defects in networks, losses and parameter groups."""

from sluice.failfast.benchmark import training_defects as training
from sluice.failfast.benchmark import workloads as plain
from sluice.failfast.benchmark.planted import Defect, Planted
from sluice.failfast.benchmark.planting import CNN, faulty, planted_in

NETWORK_DEFECTS: tuple[Defect, ...] = (
    Planted(
        name="wrong input size",
        check="model_instantiates",
        says=("shapes", "11"),
        advises="num_features",
        setup=planted_in(plain.Diabetes, faulty("WrongInputSize")),
    ),
    Planted(
        name="output (B,) for (B, 1)",
        check="model_instantiates",
        says=("(32, 1)", "(32,)"),
        advises="output_shape()",
        setup=planted_in(plain.Cancer, faulty("FlatOutput")),
    ),
    Planted(
        name="output not finite",
        check="model_instantiates",
        says=("not finite",),
        advises="forward()",
        setup=planted_in(plain.Iris, faulty("DividesByZero")),
    ),
    Planted(
        name="model that does not fit in memory",
        check="model_instantiates",
        says=("memory",),
        advises="width",
        setup=planted_in(plain.Wine, faulty("TooLarge")),
    ),
    Planted(
        name="loss not a scalar",
        check="gradients_flow",
        says=("one number", "(32,)"),
        advises="mean()",
        setup=planted_in(training.LossPerExample),
    ),
    Planted(
        name="loss a Python number",
        check="gradients_flow",
        says=("float",),
        advises="tensor",
        setup=planted_in(training.LossAsNumber),
    ),
    Planted(
        name="loss is NaN",
        check="gradients_flow",
        says=("nan",),
        advises="log of 0",
        setup=planted_in(training.LogOfZero),
    ),
    Planted(
        name="loss cut off from the parameters",
        check="gradients_flow",
        says=("gradient",),
        advises="detach",
        setup=planted_in(training.LossRearmed),
    ),
    Planted(
        name="NaN gradient",
        check="gradients_flow",
        says=("encoder",),
        advises="square root",
        setup=planted_in(plain.Wine, faulty("RootAtZero")),
    ),
    Planted(
        name="all layers frozen",
        check="gradients_flow",
        says=("frozen",),
        advises="requires_grad",
        setup=planted_in(plain.Cancer, faulty("AllFrozen")),
    ),
    Planted(
        name="one layer frozen without being declared",
        check="gradients_flow",
        says=("encoder.weight",),
        advises="frozen_parameters",
        setup=planted_in(plain.Diabetes, faulty("FrozenEncoder")),
    ),
    Planted(
        name="parameters missing from the optimizer",
        check="gradients_flow",
        says=("head.weight",),
        advises="parameter_groups()",
        setup=planted_in(training.HeadNotTrained, CNN),
    ),
    Planted(
        name="parameter in two groups",
        check="gradients_flow",
        says=("encoder.weight",),
        advises="group",
        setup=planted_in(training.TrainedTwice),
    ),
    Planted(
        name="detach in the middle",
        check="gradients_flow",
        says=("body.1.weight",),
        advises="detach",
        setup=planted_in(plain.DigitImages, faulty("Detached", hidden=8)),
    ),
    Planted(
        name="unused layer",
        check="gradients_flow",
        says=("skip.weight",),
        advises="forward()",
        setup=planted_in(plain.ShortBars, faulty("UnusedLayer")),
    ),
    Planted(
        name="dead ReLU",
        check="gradients_flow",
        says=("0 of 32",),
        advises="bias",
        setup=planted_in(plain.Diabetes, faulty("DeadRelu")),
    ),
    Planted(
        name="zero initialisation",
        check="gradients_flow",
        says=("encoder",),
        advises="at random",
        setup=planted_in(plain.Cancer, faulty("ZeroWeights")),
    ),
    Planted(
        name="constant initialisation",
        check="gradients_flow",
        says=("encoder",),
        advises="at random",
        setup=planted_in(plain.ShortBars, faulty("ConstantWeights")),
    ),
)
