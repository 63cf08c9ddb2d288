"""Reports which extra of Sluice a missing package belongs to.

An installation without extras contains what the POC gate, the training tracer and the promotion
gate import. All other packages belong to an extra, such as ``sluice-mlops[pipeline]``.
"""

import contextlib
import importlib.util
from collections.abc import Iterator

from sluice.base.errors import SettingsError

EXTRAS = {
    "images": ("PIL",),
    "reports": ("matplotlib",),
    "registry": ("cryptography", "sqlalchemy"),
    "serving": ("fastapi", "prometheus_client", "starlette", "structlog", "uvicorn"),
    "search": ("optuna", "ray"),
    "pipeline": (
        *("dagster", "dagster_shared", "dagster_webserver", "great_expectations", "grpc", "numba"),
        *("opentelemetry", "upath", "wandb"),
    ),
    "mlflow": ("mlflow",),
    "postgres": ("dagster_postgres", "psycopg"),
    "s3": ("s3fs",),
    "searchers": ("hyperopt",),
}
"""Modules that each extra provides, by the name of the extra. The extra ``pipeline`` also provides
the modules of the extras above it."""

_FILESYSTEM_PACKAGES = {"s3": "s3fs", "s3a": "s3fs"}
"""Package that fsspec needs to open a URL, by URL scheme. Each package belongs to an extra."""

_EXTRA_BY_MODULE = {module: extra for extra, modules in EXTRAS.items() for module in modules}


@contextlib.contextmanager
def naming_extras(what: str) -> Iterator[None]:
    """Replace the import error of a missing package by an error that names its extra.

    Args:
        what: What requires the package, for the message, such as 'sluice run'.

    Raises:
        SettingsError: The code in the block imported a package of an extra that is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        extra_error = missing_extra_error(error, what)
        if extra_error is None:
            raise
        raise extra_error from error


def missing_extra_error(error: ModuleNotFoundError, what: str) -> SettingsError | None:
    """Return the error that names the extra of a missing package; None for other packages.

    Args:
        error: Error of the import.
        what: What requires the package, for the message.
    """
    package = (error.name or "").partition(".")[0]
    extra = _EXTRA_BY_MODULE.get(package)
    if extra is None or importlib.util.find_spec(package) is not None:
        return None
    return SettingsError(
        f"{what} requires the package {package}, which is not installed.",
        cause=f"{package} belongs to the extra '{extra}', which this installation lacks.",
        fix=_install_advice(extra),
    )


def missing_filesystem_advice(url: str) -> str:
    """Return how to install the package that fsspec needs for a URL; '' if no package is missing.

    >>> missing_filesystem_advice("file:///data/rows.csv")
    ''

    Args:
        url: URL of a file or folder, possibly a chain such as 'filecache::s3://bucket/name'.
    """
    scheme = url.partition("://")[0].rpartition("::")[2]
    package = _FILESYSTEM_PACKAGES.get(scheme)
    if package is None or importlib.util.find_spec(package) is not None:
        return ""
    extra = _EXTRA_BY_MODULE[package]
    return f"URLs with {scheme}:// require the package {package}. {_install_advice(extra)}"


def _install_advice(extra: str) -> str:
    return f"Install Sluice with the extra '{extra}'. In a checkout: pip install '.[{extra}]'"
