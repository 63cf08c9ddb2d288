"""How values pass from asset to asset: one JSON file each, written whole or not at all.

Nothing is pickled. Large content lies in the artifact store; a record names it by digest.
"""

from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from pydantic import ValidationError

from sluice.base.errors import ContractError
from sluice.base.files import write_atomic
from sluice.base.settings import Record

R = TypeVar("R", bound=Record)


class RecordIOManager(dg.IOManager):
    """Stores the latest value of every asset under one folder, which no run config can change."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Write the record."""
        if obj is None:
            return
        if not isinstance(obj, Record):
            raise ContractError(
                f"Asset {context.asset_key.to_user_string()} must return a Record, "
                f"got {type(obj).__name__}.",
                fix="Return a frozen Record and put large content in the artifact store.",
            )
        write_atomic(self._path(context.asset_key), obj.model_dump_json(indent=1).encode())

    def load_input(self, context: dg.InputContext) -> Any:
        """Read the record that the upstream asset wrote last."""
        path = self._path(context.asset_key)
        kind = context.dagster_type.typing_type
        try:
            return kind.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ContractError(
                f"{path} must hold a {kind.__name__}, and does not: {error.errors()[0]['msg']} "
                f"at {error.errors()[0]['loc']}.",
                cause="It was written by another version of Sluice, or changed since.",
                fix="Materialize that asset again.",
            ) from error
        except FileNotFoundError:
            raise ContractError(
                f"Asset {context.asset_key.to_user_string()} has no value yet ({path}).",
                fix="Materialize it first.",
            ) from None

    def _path(self, key: dg.AssetKey) -> Path:
        return self._root.joinpath(*key.path).with_suffix(".json")


def newest_record(kind: type[R], records: Path, pipeline: str, asset: str) -> R | None:
    """Return what an asset wrote last; None when it never did, or in another version's form."""
    try:
        return kind.model_validate_json((records / pipeline / f"{asset}.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
