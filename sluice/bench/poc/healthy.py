"""All healthy set-ups. Each of them learns, so none may fail.

They combine workloads, architectures, settings and seeds. Some are so unusual that simple rules
would report them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.bench.poc import healthy_workloads as odd
from sluice.bench.poc import workloads as plain
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


def _entries() -> Iterator[HealthySetup]:
    yield from _tables()
    yield from _bars()
    yield from _digits()
    yield from _unusual()


def _tables() -> Iterator[HealthySetup]:
    tables: tuple[type[Workload], ...] = (plain.Diabetes, plain.Cancer, plain.Wine, plain.Iris)
    networks = ("linear", "networks:Mlp", "networks:NormMlp", "networks:BatchNormMlp")
    for table_index, table in enumerate(tables):
        for index, name in enumerate(networks):
            seed = table_index + index
            yield _entry(table, network(name), seed=seed)
        yield _entry(table, network("networks:TanhMlp", dropout=0.5), seed=7)
        yield _entry(table, network("networks:DeepMlp"), seed=8)


def _bars() -> Iterator[HealthySetup]:
    bars = plain.ShortBars
    for seed, name in enumerate(("linear", "gru", "lstm", "networks:Attention")):
        yield _entry(bars, network(name, hidden=16), seed=seed)
    yield _entry(bars, network("gru", hidden=16, dropout=0.2, layers=2), seed=4)
    yield _entry(bars, network("networks:Mlp"), seed=5)
    yield _entry(
        bars, network("gru", hidden=16), seed=6, note="returns", settings={"target": "vs_return"}
    )
    yield _entry(bars, network("linear"), seed=7, note="returns", settings={"target": "vs_return"})
    yield _entry(bars, network("lstm", hidden=8), seed=8, note="60 steps", settings={"seq_len": 60})
    yield _entry(bars, network("slstm", hidden=16), seed=9, settings={"seq_len": 10})


def _digits() -> Iterator[HealthySetup]:
    for seed in range(3):
        yield _entry(plain.DigitImages, network("networks:ConvNet", hidden=8), seed=seed)
    dropout = network("networks:ConvNet", hidden=8, dropout=0.5)
    yield _entry(plain.DigitImages, dropout, seed=3)
    yield _entry(plain.Digits, network("networks:Mlp"), seed=4)
    yield _entry(plain.Digits, network("linear"), seed=5)
    for seed, name in enumerate(("gru", "lstm", "networks:Attention")):
        yield _entry(plain.DigitLines, network(name), seed=seed)
    yield _entry(plain.DigitTokens, network("networks:TokenSum"), seed=0, note="sparse embedding")
    yield _entry(plain.DigitTokens, network("networks:TiedTokens"), seed=1, note="tied embedding")


def _unusual() -> Iterator[HealthySetup]:
    mlp = network("networks:Mlp")
    for seed, table in enumerate((odd.FrozenDeclared, odd.FrozenWine)):
        yield _entry(table, network("networks:FrozenEncoder"), seed=seed)
        yield _entry(table, network("networks:Lora"), seed=seed, note="LoRA with B = 0")
    for seed, name in enumerate(("ZeroGatedResidual", "ZeroHead", "SparseMlp", "Experts")):
        wide = network(f"networks:{name}", hidden=128 if name == "SparseMlp" else 32)
        yield _entry(plain.Cancer, wide, seed=seed)
        yield _entry(plain.Diabetes, wide, seed=seed)
    for seed, table in enumerate(
        (
            *(odd.NegativeTarget, odd.GaussianLikelihood, odd.SummedLoss, odd.HuberRegression),
            *(odd.WideTable, odd.ConstantDeclared, odd.TwoParameterGroups),
            *(odd.SmoothedLabels, odd.WeightedClasses),
        )
    ):
        yield _entry(table, mlp, seed=seed)
    yield _entry(odd.RareLabel, mlp, seed=0, note="labels 2 % / 98 %")
    flat = network("networks:MlpWithoutOutputAxis")
    yield _entry(odd.FlatTarget, flat, seed=0, note="targets (N,)")
    for seed in range(2):
        yield _entry(
            odd.UnevenNoise, mlp, seed=seed, training=with_learning_rate(3e-4), note="rate 0.0003"
        )
    few = network("networks:TanhMlp", hidden=2)
    yield _entry(odd.UnevenNoise, few, seed=0, note="2 units")
    yield _entry(plain.Diabetes, few, seed=0, note="2 units")
    yield _entry(odd.RawPixels, network("networks:InputNormConvNet", hidden=8), seed=0)
    for rate in (1e-4, 2e-2):
        yield _entry(
            plain.Diabetes, mlp, seed=1, training=with_learning_rate(rate), note=f"rate {rate:g}"
        )
        yield _entry(
            plain.Wine, mlp, seed=1, training=with_learning_rate(rate), note=f"rate {rate:g}"
        )
        gru = network("gru", hidden=16)
        yield _entry(
            plain.ShortBars, gru, seed=1, training=with_learning_rate(rate), note=f"rate {rate:g}"
        )
    slow_start = TRAINING.model_copy(update={"warmup_share": 0.3})
    yield _entry(plain.Diabetes, mlp, seed=2, training=slow_start, note="long warmup")
    large_batches = TRAINING.model_copy(update={"batch_rows": 128})
    yield _entry(plain.Cancer, mlp, seed=3, training=large_batches, note="large batches")
    yield _entry(odd.FittedRanks, mlp, seed=0, note="state fitted on train rows")


def _entry(
    workload: type[Workload],
    model: ModelSettings,
    *,
    seed: int,
    note: str = "",
    training: TrainSettings = TRAINING,
    settings: dict[str, object] | None = None,
) -> HealthySetup:
    architecture = model.architecture.rpartition(":")[2]
    parts = [workload.__name__, architecture]
    parts += [f"dropout {model.dropout:g}"] if model.dropout else []
    parts += [note] if note else []
    return HealthySetup(
        name=f"{', '.join(parts)}, seed {seed}",
        setup=PocSetup(
            workload=workload,
            settings=settings or {},
            model=model,
            training=training,
            seed=seed,
        ),
    )


HEALTHY: tuple[HealthySetup, ...] = tuple(_entries())
"""Every healthy set-up, in the order they run."""
