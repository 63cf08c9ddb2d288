"""A pipeline whose file cannot be loaded: shown in the UI with the reason, beside the others."""

import traceback
from collections.abc import Callable

import dagster as dg

from sluice.base.errors import SluiceError

GROUP = "broken_pipelines"


def load_or_explain(name: str, load: Callable[[], dg.Definitions]) -> dg.Definitions:
    """Return a pipeline's definitions or, when they cannot be made, one asset that says why.

    Args:
        name: Of the pipeline's file, for the asset's key.
        load: Makes the definitions; whatever it raises concerns this pipeline alone.
    """
    try:
        return load()
    except Exception as error:
        dg.get_dagster_logger("sluice").error(f"Pipeline {name} cannot be loaded: {error}")
        return dg.Definitions(assets=[_explanation(name, error)])


def _explanation(name: str, error: Exception) -> dg.AssetsDefinition:
    known = isinstance(error, SluiceError)
    said = str(error) if known else f"{type(error).__name__}: {error}"
    trace = "" if known else f"\n\n```\n{''.join(traceback.format_exception(error))}\n```"

    @dg.asset(
        key=[name, "not_loaded"],
        group_name=GROUP,
        kinds={"yaml"},
        description=f"**This pipeline cannot be loaded.** {said}\n\nCorrect it and reload the "
        f"definitions.{trace}",
    )
    def not_loaded() -> None:
        raise dg.Failure(
            f"Pipeline {name} cannot be loaded: {said} Correct it and reload the definitions."
        )

    return not_loaded
