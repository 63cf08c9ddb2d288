"""Server process of a rehearsal: the app and loop of ``sluice serve`` on the sandbox.

Only the challenger's process differs: the networks it loads have the injected fault.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from sluice.base.settings import Record
from sluice.rehearsal.faults import FaultPlan
from sluice.serving.settings import ServingSettings


class ServerConfig(Record):
    """Configuration of the server process."""

    registry_url: str
    artifacts: str = Field(description="Folder of the artifact store.")
    model: str
    port: int = Field(description="Port to listen on; 0 takes a free port.")
    serving: ServingSettings
    plan: FaultPlan
    log: str = Field(description="Log file of the server.")


def main(config: ServerConfig) -> None:
    """Serve until SIGTERM; print the port, or the error, as one JSON line on stdout."""
    from sluice.base.errors import SluiceError

    try:
        _serve(config)
    except SluiceError as error:
        fields = {"what": error.what, "cause": error.cause, "fix": error.fix}
        print(json.dumps({"error": fields}), flush=True)
        raise SystemExit(2) from None


def _serve(config: ServerConfig) -> None:
    from sluice.base.artifacts import ArtifactStore
    from sluice.registry.rollouts import RolloutLedger
    from sluice.serving.isolation import Isolation
    from sluice.serving.ledger_models import LedgerModels, ledger_loader_spec
    from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
    from sluice.serving.log import json_log
    from sluice.serving.log_writer import LogWriter
    from sluice.serving.server import open_serving, serve
    from sluice.serving.tokens import Tokens

    def clock() -> datetime:
        return datetime.now(UTC)

    artifacts = Path(config.artifacts)
    store = ArtifactStore(artifacts)
    loader = ledger_loader_spec(config.registry_url, config.model, artifacts)
    faulty_loader = loader.model_copy(
        update={
            "load": "sluice.rehearsal.faults:load_with_fault",
            "arguments": loader.arguments | {"plan": config.plan.model_dump_json()},
        }
    )
    with (
        open(config.log, "a") as log,
        RolloutLedger.open(config.registry_url, clock=clock, create=False) as ledger,
        Isolation(faulty_loader, config.serving) as isolation,
    ):
        serving = open_serving(
            config.model,
            LedgerTrafficSplit(ledger, config.model),
            LedgerModels(ledger, config.model, store).load,
            isolate=isolation.load,
            settings=config.serving,
            tokens=Tokens.of(),
            clock=clock,
            log=json_log(LogWriter(log)),
            reports=ledger.observations,
        )
        serve(
            serving,
            host="127.0.0.1",
            port=config.port,
            on_ready=lambda port: print(json.dumps({"port": port}), flush=True),
        )


if __name__ == "__main__":
    main(ServerConfig.model_validate_json(sys.argv[1]))
