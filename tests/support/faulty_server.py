"""The server of ``sluice serve`` in a child process, with injected faults in its challengers.

The faults are those of the rehearsal, and "leak" and "hang", which affect only the challenger's
process.
"""

import dataclasses
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor, nn

from sluice.base.settings import Record
from sluice.rehearsal.faults import FaultPlan, inject_fault
from sluice.serving.deployed import DeployedModel
from sluice.serving.ledger_models import load_from_ledger
from sluice.serving.settings import ServingSettings

ROOT = Path(__file__).parents[2]
LEAK_BYTES = 2**26
HANG_S = 60.0


class FaultyServerConfig(Record):
    """Configuration of the server process."""

    registry_url: str
    artifacts: str
    model: str
    serving: ServingSettings
    faults: dict[str, str]
    """Fault by candidate digest: a fault of the rehearsal, "leak" or "hang"."""
    spread: float
    """Standard deviation of production's predictions."""
    log: str
    """Path of the server's log."""


class _LeakingOrHangingNetwork(nn.Module):
    """A network that leaks memory or hangs in every call."""

    def __init__(self, network: nn.Module, fault: str) -> None:
        super().__init__()
        self.network, self.fault = network, fault
        self.leaked_blocks: list[mmap.mmap] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "hang":
            time.sleep(HANG_S)
        block = mmap.mmap(-1, LEAK_BYTES)
        block.write(b"x" * LEAK_BYTES)
        self.leaked_blocks.append(block)
        out: Tensor = self.network(x)
        return out


def load_with_fault(candidate: str, *, config: str) -> DeployedModel:
    """Load a version with its fault. The challenger's process calls this function."""
    settings = FaultyServerConfig.model_validate_json(config)
    model = load_from_ledger(
        candidate,
        registry_url=settings.registry_url,
        model=settings.model,
        artifacts=settings.artifacts,
    )
    fault = settings.faults.get(candidate, "none")
    if fault in ("leak", "hang"):
        first_network, *other_networks = model.networks
        return dataclasses.replace(
            model, networks=(_LeakingOrHangingNetwork(first_network, fault), *other_networks)
        )
    plan = FaultPlan.model_validate(
        {"fault": fault, "challenger": candidate, "seed": 0, "spread": (settings.spread,)}
    )
    return inject_fault(model, plan)


@contextmanager
def running_faulty_server(
    config: FaultyServerConfig,
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run the server; yield its process and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.faulty_server", config.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        yield process, int(json.loads(process.stdout.readline())["port"])
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def serve_with_faults(config: FaultyServerConfig) -> None:
    """Serve until SIGTERM; print the port as one line of JSON."""
    from sluice.base.artifacts import ArtifactStore
    from sluice.registry.rollouts import RolloutLedger
    from sluice.serving.isolation import Isolation
    from sluice.serving.ledger_models import LedgerModels
    from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
    from sluice.serving.log import json_log
    from sluice.serving.server import open_serving, serve
    from sluice.serving.tokens import Tokens
    from sluice.serving.wire_protocol import LoaderSpec
    from sluice.training.orphans import end_with_parent

    end_with_parent(os.getppid())

    def clock() -> datetime:
        return datetime.now(UTC)

    loader = LoaderSpec(load=f"{__spec__.name}:load_with_fault", arguments={"config": sys.argv[1]})
    store = ArtifactStore(Path(config.artifacts))
    with (
        open(config.log, "a") as log,
        RolloutLedger.open(config.registry_url, clock=clock, create=False) as ledger,
        Isolation(loader, config.serving) as isolation,
    ):
        serving = open_serving(
            config.model,
            LedgerTrafficSplit(ledger, config.model),
            LedgerModels(ledger, config.model, store).load,
            isolate=isolation.load,
            settings=config.serving,
            tokens=Tokens.of(),
            clock=clock,
            log=json_log(log),
            reports=ledger.observations,
        )
        serve(
            serving,
            host="127.0.0.1",
            port=0,
            on_ready=lambda port: print(json.dumps({"port": port}), flush=True),
        )


if __name__ == "__main__":
    serve_with_faults(FaultyServerConfig.model_validate_json(sys.argv[1]))
