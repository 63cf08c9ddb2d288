"""``sluice registry erase``: one user's samples go."""

from typing import Annotated

import typer
from rich.text import Text

from sluice.base.pluralize import counted
from sluice.cli.output import print_json
from sluice.cli.registry_access import AsJson, Model, as_text, known, open_rollouts, show_result

User = Annotated[
    str,
    typer.Option(
        "--user", help="Key that requests named as 'user'.", callback=as_text, show_default=False
    ),
]


def erase(model: Model, user: User, as_json: AsJson = False) -> None:
    """Delete every sample of one user's requests; sums over many users stay.

    Servers report what they sampled within seconds: delete again when the user's last request is
    that young. Backups of the database are not touched.
    """
    with open_rollouts() as ledger:
        found = ledger.erase_user(known(ledger, model), user)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    unnamed = (
        f" {counted(found.unnamed, 'sample')} of before samples named their client cannot be told "
        "apart, and go when they are too old."
        if found.unnamed
        else ""
    )
    show_result(
        Text(
            f"Deleted {counted(found.samples, 'sample')} of the user: {found.drift} for drift, "
            f"{found.pairs} that both arms of a rollout answered, {found.labelled} of them with a "
            f"row that waited for its label. {counted(found.kept, 'sample')} of {model} "
            f"{'stays' if found.kept == 1 else 'stay'}.{unnamed}"
        )
    )
