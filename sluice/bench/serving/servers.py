"""The servers that the benchmark measures.

``python -m sluice.bench.serving.servers KIND`` runs one server.

As in the default pipeline, the model consists of eight GRUs of 32 units on windows of 22 rows and
nine features. Its weights are random, because they do not affect the time of a prediction. The
challenger runs in a separate process, as in ``sluice serve``.
"""

import sys
from datetime import UTC, datetime
from typing import Any, Literal

import torch
import uvicorn
from fastapi import FastAPI
from torch import nn

from sluice.base.digests import digest_bytes
from sluice.models.build import build_network
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.contract import InputContract
from sluice.serving.deployed import DeployedModel
from sluice.serving.isolation import Isolation
from sluice.serving.log import json_log
from sluice.serving.log_writer import LogWriter
from sluice.serving.server import bind_socket, open_serving, serve
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens
from sluice.serving.traffic_split import InMemoryTrafficSplit
from sluice.serving.wire_protocol import LoaderSpec

ServerKind = Literal["minimal", "production", "canary", "shadow"]

COLUMNS = tuple(f"feature_{number}" for number in range(9))
SEQ_LEN = 22
_NUM_SEEDS = 8
LOADER = "sluice.bench.serving.servers:load_random"
"""Import path of the function with which the challenger's process loads its model."""

_PRODUCTION, _CHALLENGER = 1, 2
"""Versions of the two models."""


def load_random(candidate: str) -> DeployedModel:
    """Return the model with the digest ``candidate``, for the challenger's process."""
    return next(
        random_model(version)
        for version in (_PRODUCTION, _CHALLENGER)
        if _candidate_digest(version) == candidate
    )


def _candidate_digest(version: int) -> str:
    return digest_bytes(str(version).encode())


def random_model(version: int) -> DeployedModel:
    """Return a model with random weights, seeded by the version, as ``sluice serve`` loads it."""
    torch.manual_seed(version)
    networks: list[nn.Module] = [
        Scaled(
            build_network(len(COLUMNS), 1, ModelSettings()),
            num_features=len(COLUMNS),
            num_outputs=1,
            scale_inputs=True,
            scale_target=True,
        ).eval()
        for _ in range(_NUM_SEEDS)
    ]
    return DeployedModel(
        version=version,
        candidate=_candidate_digest(version),
        contract=InputContract(columns=COLUMNS, seq_len=SEQ_LEN),
        target="target",
        networks=tuple(networks),
    )


def minimal_app(deployed: DeployedModel) -> FastAPI:
    """Return a minimal FastAPI app, without validation, router and log."""
    app = FastAPI()

    @app.post("/predict")
    async def predict(body: dict[str, Any]) -> dict[str, Any]:
        x = torch.tensor(body["windows"]).numpy()
        return {"outputs": deployed.predict(x, None).mean(axis=0).tolist()}

    return app


def serve_kind(kind: ServerKind) -> None:
    """Print a free port, and run a server of one kind on it until a signal arrives."""
    torch.set_num_threads(1)
    production = random_model(_PRODUCTION)
    if kind == "minimal":
        with bind_socket("127.0.0.1", 0) as server_socket:
            server_socket.listen()
            print(server_socket.getsockname()[1], flush=True)
            config = uvicorn.Config(minimal_app(production), log_level="warning", access_log=False)
            uvicorn.Server(config).run(sockets=[server_socket])
        return
    split = TrafficSplit(epoch=1, production=production.candidate)
    if kind != "production":
        split = TrafficSplit(
            epoch=1,
            production=production.candidate,
            challenger=_candidate_digest(_CHALLENGER),
            rollout="benchmark",
            share=0.5 if kind == "canary" else 0.0,
            shadow=kind == "shadow",
        )
    settings = ServingSettings(requests_per_s=1e6, burst_requests=1_000_000, drain_delay_s=0.0)
    with Isolation(LoaderSpec(load=LOADER, arguments={}), settings) as isolation:
        serving = open_serving(
            "benchmark",
            InMemoryTrafficSplit(split),
            {production.candidate: production}.__getitem__,
            isolate=isolation.load,
            settings=settings,
            tokens=Tokens.of(),
            clock=lambda: datetime.now(UTC),
            log=json_log(LogWriter(sys.stderr)),
            reports=None,
        )
        serve(serving, host="127.0.0.1", port=0, on_ready=lambda port: print(port, flush=True))


if __name__ == "__main__":
    serve_kind(sys.argv[1])  # type: ignore[arg-type]
