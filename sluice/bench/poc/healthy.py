"""All healthy set-ups. Each of them learns, so the POC gate must not fail for any of them.

They combine workloads, architectures, settings and seeds. Some are so unusual that simple rules
would report them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.bench.poc import healthy_workloads, workloads
from sluice.bench.poc.planting import with_learning_rate
from sluice.bench.poc.setup import TRAINING, PocSetup, network
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthySetup:
    """A healthy set-up; its name contains what is unusual about it."""

    name: str
    setup: PocSetup


def _all_setups() -> Iterator[HealthySetup]:
    yield from _table_setups()
    yield from _bar_setups()
    yield from _digit_setups()
    yield from _unusual_setups()


def _table_setups() -> Iterator[HealthySetup]:
    table_workloads: tuple[type[Workload], ...] = (
        workloads.Diabetes,
        workloads.Cancer,
        workloads.Wine,
        workloads.Iris,
    )
    networks = ("linear", "networks:Mlp", "networks:NormMlp", "networks:BatchNormMlp")
    for workload_index, workload in enumerate(table_workloads):
        for index, name in enumerate(networks):
            seed = workload_index + index
            yield _make_setup(workload, network(name), seed=seed)
        yield _make_setup(workload, network("networks:TanhMlp", dropout=0.5), seed=7)
        yield _make_setup(workload, network("networks:DeepMlp"), seed=8)


def _bar_setups() -> Iterator[HealthySetup]:
    bars = workloads.ShortBars
    for seed, name in enumerate(("linear", "gru", "lstm", "networks:Attention")):
        yield _make_setup(bars, network(name, hidden=16), seed=seed)
    yield _make_setup(bars, network("gru", hidden=16, dropout=0.2, layers=2), seed=4)
    yield _make_setup(bars, network("networks:Mlp"), seed=5)
    yield _make_setup(
        bars, network("gru", hidden=16), seed=6, note="returns", settings={"target": "vs_return"}
    )
    yield _make_setup(
        bars, network("linear"), seed=7, note="returns", settings={"target": "vs_return"}
    )
    yield _make_setup(
        bars, network("lstm", hidden=8), seed=8, note="60 steps", settings={"seq_len": 60}
    )
    yield _make_setup(bars, network("slstm", hidden=16), seed=9, settings={"seq_len": 10})


def _digit_setups() -> Iterator[HealthySetup]:
    for seed in range(3):
        yield _make_setup(workloads.DigitImages, network("networks:ConvNet", hidden=8), seed=seed)
    conv_net_with_dropout = network("networks:ConvNet", hidden=8, dropout=0.5)
    yield _make_setup(workloads.DigitImages, conv_net_with_dropout, seed=3)
    yield _make_setup(workloads.Digits, network("networks:Mlp"), seed=4)
    yield _make_setup(workloads.Digits, network("linear"), seed=5)
    for seed, name in enumerate(("gru", "lstm", "networks:Attention")):
        yield _make_setup(workloads.DigitLines, network(name), seed=seed)
    yield _make_setup(
        workloads.DigitTokens, network("networks:TokenMean"), seed=0, note="sparse embedding"
    )
    yield _make_setup(
        workloads.DigitTokens, network("networks:TiedTokens"), seed=1, note="tied embedding"
    )


def _unusual_setups() -> Iterator[HealthySetup]:
    mlp = network("networks:Mlp")
    for seed, workload in enumerate(
        (healthy_workloads.DeclaredFreezeDiabetes, healthy_workloads.DeclaredFreezeWine)
    ):
        yield _make_setup(workload, network("networks:FrozenEncoder"), seed=seed)
        yield _make_setup(workload, network("networks:Lora"), seed=seed, note="LoRA with B = 0")
    for seed, name in enumerate(("ZeroGatedResidual", "ZeroHead", "SparseMlp", "Experts")):
        model = network(f"networks:{name}", hidden=128 if name == "SparseMlp" else 32)
        yield _make_setup(workloads.Cancer, model, seed=seed)
        yield _make_setup(workloads.Diabetes, model, seed=seed)
    for seed, workload in enumerate(
        (
            healthy_workloads.NegativeTarget,
            healthy_workloads.GaussianLikelihood,
            healthy_workloads.SummedLoss,
            healthy_workloads.HuberRegression,
            healthy_workloads.WideTable,
            healthy_workloads.ConstantDeclared,
            healthy_workloads.TwoParameterGroups,
            healthy_workloads.SmoothedLabels,
            healthy_workloads.WeightedClasses,
        )
    ):
        yield _make_setup(workload, mlp, seed=seed)
    yield _make_setup(healthy_workloads.RareLabel, mlp, seed=0, note="labels 2 % / 98 %")
    flat_output_mlp = network("networks:MlpWithoutOutputAxis")
    yield _make_setup(healthy_workloads.FlatTarget, flat_output_mlp, seed=0, note="targets (N,)")
    for seed in range(2):
        yield _make_setup(
            healthy_workloads.UnevenNoise,
            mlp,
            seed=seed,
            training=with_learning_rate(3e-4),
            note="learning rate 0.0003",
        )
    two_units = network("networks:TanhMlp", hidden=2)
    yield _make_setup(healthy_workloads.UnevenNoise, two_units, seed=0, note="2 units")
    yield _make_setup(workloads.Diabetes, two_units, seed=0, note="2 units")
    yield _make_setup(
        healthy_workloads.RawPixels, network("networks:InputNormConvNet", hidden=8), seed=0
    )
    for learning_rate in (1e-4, 2e-2):
        yield _make_setup(
            workloads.Diabetes,
            mlp,
            seed=1,
            training=with_learning_rate(learning_rate),
            note=f"learning rate {learning_rate:g}",
        )
        yield _make_setup(
            workloads.Wine,
            mlp,
            seed=1,
            training=with_learning_rate(learning_rate),
            note=f"learning rate {learning_rate:g}",
        )
        gru = network("gru", hidden=16)
        yield _make_setup(
            workloads.ShortBars,
            gru,
            seed=1,
            training=with_learning_rate(learning_rate),
            note=f"learning rate {learning_rate:g}",
        )
    long_warmup = TRAINING.model_copy(update={"warmup_share": 0.3})
    yield _make_setup(workloads.Diabetes, mlp, seed=2, training=long_warmup, note="long warmup")
    large_batches = TRAINING.model_copy(update={"batch_rows": 128})
    yield _make_setup(workloads.Cancer, mlp, seed=3, training=large_batches, note="large batches")
    yield _make_setup(healthy_workloads.FittedRanks, mlp, seed=0, note="state fitted on train rows")


def _make_setup(
    workload: type[Workload],
    model: ModelSettings,
    *,
    seed: int,
    note: str = "",
    training: TrainSettings = TRAINING,
    settings: dict[str, object] | None = None,
) -> HealthySetup:
    architecture = model.architecture.rpartition(":")[2]
    name_parts = [workload.__name__, architecture]
    name_parts += [f"dropout {model.dropout:g}"] if model.dropout else []
    name_parts += [note] if note else []
    return HealthySetup(
        name=f"{', '.join(name_parts)}, seed {seed}",
        setup=PocSetup(
            workload=workload,
            settings=settings or {},
            model=model,
            training=training,
            seed=seed,
        ),
    )


HEALTHY: tuple[HealthySetup, ...] = tuple(_all_setups())
"""Every healthy set-up, in the order of their runs."""
