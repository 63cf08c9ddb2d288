"""``sluice registry erase``: deletes the samples of one user."""

from typing import Annotated

import typer
from rich.text import Text

from sluice.base.pluralize import pluralize
from sluice.cli.output import print_json
from sluice.cli.registry_access import (
    AsJson,
    Model,
    check_storable,
    open_rollouts,
    require_model,
    show_result,
)

User = Annotated[
    str,
    typer.Option(
        "--user",
        help="Value of the field 'user' in the requests.",
        callback=check_storable,
        show_default=False,
    ),
]


def erase(model: Model, user: User, as_json: AsJson = False) -> None:
    """Delete all samples of one user's requests; aggregates over many users are kept.

    Servers report samples with a delay of seconds. If the user's last request is only seconds old,
    run the command again. Backups of the database are not changed.
    """
    with open_rollouts() as ledger:
        erased = ledger.erase_user(require_model(ledger, model), user)
    if as_json:
        print_json(erased.model_dump(mode="json"))
        return
    unknown_user_note = (
        f" {pluralize(erased.unnamed, 'sample')} of an older version of Sluice "
        f"{'does' if erased.unnamed == 1 else 'do'} not contain a user, and will be deleted at "
        "expiry."
        if erased.unnamed
        else ""
    )
    show_result(
        Text(
            f"Deleted {pluralize(erased.samples, 'sample')} of the user: {erased.drift} for drift, "
            f"{erased.pairs} answered by both arms of a rollout ({erased.awaiting_label} of them "
            f"waited for a label). {pluralize(erased.kept, 'sample')} of {model} "
            f"{'stays' if erased.kept == 1 else 'stay'}.{unknown_user_note}"
        )
    )
