"""The rehearsal's server: ``sluice serve``'s own app and loop on the sandbox, in its own process.

Only the challenger's process differs: the networks it loads carry the planted fault.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from sluice.base.settings import Record
from sluice.rehearsal.faults import Plan
from sluice.serving.settings import ServingSettings


class Order(Record):
    """What the process is asked to serve."""

    registry_url: str
    artifacts: str = Field(description="Folder of the store.")
    model: str
    port: int = Field(description="To listen on; 0 takes a free one.")
    serving: ServingSettings
    plan: Plan
    log: str = Field(description="File the server logs to.")


def main(order: Order) -> None:
    """Serve until SIGTERM; one JSON line on stdout says where, or what went wrong."""
    from sluice.base.errors import SluiceError

    try:
        _serve(order)
    except SluiceError as error:
        told = {"what": error.what, "cause": error.cause, "fix": error.fix}
        print(json.dumps({"error": told}), flush=True)
        raise SystemExit(2) from None


def _serve(order: Order) -> None:
    from sluice.base.artifacts import ArtifactStore
    from sluice.registry.rollouts import RolloutLedger
    from sluice.serving.isolation import Isolation
    from sluice.serving.ledger_models import LedgerModels, ledger_recipe
    from sluice.serving.ledger_weights import LedgerWeights
    from sluice.serving.log import json_log
    from sluice.serving.log_writer import LogWriter
    from sluice.serving.server import open_serving, serve
    from sluice.serving.tokens import Tokens

    def clock() -> datetime:
        return datetime.now(UTC)

    artifacts = Path(order.artifacts)
    store = ArtifactStore(artifacts)
    own = ledger_recipe(order.registry_url, order.model, artifacts)
    planted = own.model_copy(
        update={
            "load": "sluice.rehearsal.faults:load_planted",
            "arguments": own.arguments | {"plan": order.plan.model_dump_json()},
        }
    )
    with (
        open(order.log, "a") as log,
        RolloutLedger.open(order.registry_url, clock=clock, create=False) as ledger,
        Isolation(planted, order.serving) as isolation,
    ):
        serving = open_serving(
            order.model,
            LedgerWeights(ledger, order.model),
            LedgerModels(ledger, order.model, store).load,
            isolate=isolation.load,
            settings=order.serving,
            tokens=Tokens.of(),
            clock=clock,
            log=json_log(LogWriter(log)),
            reports=ledger.observations,
        )
        serve(
            serving,
            host="127.0.0.1",
            port=order.port,
            on_ready=lambda port: print(json.dumps({"port": port}), flush=True),
        )


if __name__ == "__main__":
    main(Order.model_validate_json(sys.argv[1]))
