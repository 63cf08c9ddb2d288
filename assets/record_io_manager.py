"""IO manager that stores the latest value of each asset as a JSON file, written atomically.

Values are never pickled. A record refers to large content by its digest in the artifact store.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from pydantic import ValidationError

from sluice.base.errors import ContractError
from sluice.base.files import write_atomic
from sluice.base.settings import Record

R = TypeVar("R", bound=Record)


class RecordIOManager(dg.IOManager):
    """Stores the latest value of each asset below one folder, which run config cannot change."""

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
                fix="Return a frozen Record, and store large content in the artifact store.",
            )
        write_atomic(self._path(context.asset_key), obj.model_dump_json(indent=1).encode())

    def load_input(self, context: dg.InputContext) -> Any:
        """Read the latest record of the upstream asset.

        If the input is not annotated with a Record, the result is the content of the JSON file,
        usually a dict. This is the case in assets of the user.
        """
        path = self._path(context.asset_key)
        record_type = context.dagster_type.typing_type
        try:
            if not (isinstance(record_type, type) and issubclass(record_type, Record)):
                return json.loads(path.read_bytes())
            return record_type.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ContractError(
                f"{path} must contain a valid {record_type.__name__}: {error.errors()[0]['msg']} "
                f"at {error.errors()[0]['loc']}.",
                cause="Another version of Sluice wrote the file, or it was edited.",
                fix="Materialize the asset again.",
            ) from error
        except FileNotFoundError:
            raise ContractError(
                f"Asset {context.asset_key.to_user_string()} has no value yet ({path}).",
                fix="Materialize it first.",
            ) from None

    def _path(self, key: dg.AssetKey) -> Path:
        return self._root.joinpath(*key.path).with_suffix(".json")


def read_latest_record(record_type: type[R], records: Path, pipeline: str, asset: str) -> R | None:
    """Return the latest record of an asset; None if it is missing or has another schema."""
    try:
        return record_type.model_validate_json((records / pipeline / f"{asset}.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
