"""Placeholder for a pipeline that cannot be loaded: shown in the UI with the reason."""

import traceback
from collections.abc import Callable

import dagster as dg

from sluice.base.errors import SluiceError

GROUP = "broken_pipelines"


def load_or_explain(name: str, load: Callable[[], dg.Definitions]) -> dg.Definitions:
    """Return a pipeline's definitions; on an error, a placeholder asset with the reason.

    Args:
        name: Name of the pipeline's file or folder, for the asset's key.
        load: Builds the definitions; its errors affect this pipeline only.
    """
    try:
        return load()
    except Exception as error:
        dg.get_dagster_logger("sluice").error(f"Pipeline {name} cannot be loaded: {error}")
        return dg.Definitions(assets=[_placeholder_asset(name, error)])


def _placeholder_asset(name: str, error: Exception) -> dg.AssetsDefinition:
    is_expected_error = isinstance(error, SluiceError)
    reason = str(error) if is_expected_error else f"{type(error).__name__}: {error}"
    advice = "Correct the pipeline file or its code, and reload the definitions."
    traceback_text = (
        "" if is_expected_error else f"\n\n```\n{''.join(traceback.format_exception(error))}\n```"
    )

    @dg.asset(
        key=[name, "not_loaded"],
        group_name=GROUP,
        kinds={"yaml"},
        description=f"**This pipeline cannot be loaded.** {reason}\n\n{advice}{traceback_text}",
    )
    def not_loaded() -> None:
        raise dg.Failure(f"Pipeline {name} cannot be loaded: {reason}\n{advice}")

    return not_loaded
