"""Small networks that predict, raise, hang or return NaN, and a server that serves them."""

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import torch
from torch import Tensor, nn

from sluice.base.digests import digest_bytes
from sluice.base.errors import StorageError
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.contract import InputContract
from sluice.serving.deployed import DeployedModel
from sluice.serving.isolation import Isolate
from sluice.serving.log import json_log
from sluice.serving.reporting import ReportSink
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.server import open_serving, serve
from sluice.serving.settings import ServingSettings
from sluice.serving.state import Serving
from sluice.serving.tls import Tls
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens

SECRET = "correct-horse-battery"
HOOK_SECRET = "another-battery-staple"
MODEL = "demo"
CONTRACT = InputContract(columns=("a", "b"), seq_len=3)


class LinearNetwork(nn.Module):
    """Returns 1.5 a - 0.5 b of the last row, plus an offset."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1] @ torch.tensor([[1.5], [-0.5]]) + self.offset


class RaisingNetwork(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"secret payload {x.sum()}")


class HangingNetwork(nn.Module):
    """Blocks in its forward pass until the test sets the event."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.released.wait(20)
        return x[:, -1].mean(dim=1, keepdim=True)


class GatedNetwork(LinearNetwork):
    """Blocks while its gate is closed, and raises while ``is_broken`` is set."""

    def __init__(self, offset: float) -> None:
        super().__init__(offset)
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False

    def forward(self, x: Tensor) -> Tensor:
        self.gate.wait(20)
        if self.is_broken:
            raise TypeError(f"secret payload {x.sum()}")
        return super().forward(x)


class NaNNetwork(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1, :1] * torch.nan


def candidate(name: str) -> str:
    return digest_bytes(name.encode())


def deployed(
    name: str, version: int, *networks: nn.Module, contract: InputContract = CONTRACT
) -> DeployedModel:
    return DeployedModel(
        version=version,
        candidate=candidate(name),
        contract=contract,
        target="y",
        networks=networks,
    )


@dataclass
class SplitSource:
    """A source of traffic splits that can be made unavailable."""

    split: TrafficSplit
    down: bool = False
    reads: int = 0

    def read(self) -> TrafficSplit:
        self.reads += 1
        if self.down:
            raise StorageError("The registry is gone.", fix="Wait.")
        return self.split


@dataclass
class RunningServer:
    """A server in this process, with its source of traffic splits and its log."""

    url: str
    serving: Serving
    source: SplitSource
    models: dict[str, DeployedModel]
    log: io.StringIO
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {SECRET}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def predict(self, *values: float, **more: Any) -> httpx.Response:
        return self.client.post("/predict", json=body(*values, **more))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; the server polls every few milliseconds."""
        pause = threading.Event()
        for _ in range(500):
            if condition():
                return
            pause.wait(0.01)
        raise AssertionError("the condition was not met within 5 s")

    def set_split(self, **split: Any) -> TrafficSplit:
        """Set a split with the next epoch and wait until the server applies it."""
        epoch = self.source.split.epoch + 1
        self.source.split = TrafficSplit(**({"production": candidate("one")} | split), epoch=epoch)
        self.wait_for(lambda: self.serving.router.table.split.epoch == epoch)
        return self.source.split

    def set_challenger(self, name: str, *, share: float = 1.0, **more: Any) -> TrafficSplit:
        return self.set_split(challenger=candidate(name), rollout=f"r-{name}", share=share, **more)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def metrics(self) -> dict[str, float]:
        text = self.client.get("/metrics").text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def body(*values: float, **more: Any) -> dict[str, Any]:
    """Return a request with one window per value; both columns have it in the last row."""
    windows = [[[0.0, 0.0], [0.0, 0.0], [value, value]] for value in values]
    return {"columns": ["a", "b"], "windows": windows} | more


def quick_settings(**changes: Any) -> ServingSettings:
    return ServingSettings(
        **(
            {
                "poll_interval_s": 0.02,
                "registry_timeout_s": 0.2,
                "load_retry_s": 0.05,
                "deadline_s": 1.0,
                "challenger_deadline_s": 0.2,
                "max_challenger_queue": 4,
                "shadow_deadline_s": 0.3,
                "body_timeout_s": 1.0,
                "drain_delay_s": 0.0,
                "max_windows": 100,
                "max_body_bytes": 100_000,
            }
            | changes
        )
    )


@contextlib.contextmanager
def run_server(
    models: dict[str, DeployedModel],
    split: TrafficSplit,
    *,
    settings: ServingSettings,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    source: SplitSource | None = None,
    isolate: Isolate | None = None,
    webhook: RollbackWebhook | None = None,
    reports: ReportSink | None = None,
    tokens: Tokens | None = None,
    token_file: TokenFileWatch | None = None,
    tls: Tls | None = None,
    name: str = MODEL,
    host: str = "127.0.0.1",
) -> Iterator[RunningServer]:
    """Run the server on a free port of this machine."""
    source, log = source or SplitSource(split), io.StringIO()
    serving = open_serving(
        name,
        source,
        lambda digest: models[digest],
        isolate=isolate,
        settings=settings,
        tokens=tokens or Tokens.of(serve=SECRET, hook=HOOK_SECRET),
        token_file=token_file,
        webhook=webhook,
        clock=clock,
        log=json_log(log),
        reports=reports,
    )
    ready, ports = threading.Event(), []

    def on_ready(port: int) -> None:
        ports.append(port)
        ready.set()

    def run() -> None:
        serve(serving, host=host, port=0, tls=tls, on_ready=on_ready)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    running = RunningServer(
        f"http{'s' if tls else ''}://127.0.0.1:{ports[0]}", serving, source, models, log
    )
    try:
        yield running
    finally:
        running.client.close()
        serving.drain()
        thread.join(10)
    assert not thread.is_alive()
