"""Ray's runtime environment on cluster workers: user code, packages and environment variables.

Settings are stored with every run, so they must not contain secrets: ``${NAME}`` in the value of an
environment variable is replaced when the cluster is joined, and the value is not stored.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from sluice.base.errors import SettingsError
from sluice.base.redaction import MASK, redact_data
from sluice.base.settings import Settings, suggest_nearest
from sluice.cluster.process import WORKER_ENVIRONMENT

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MIN_HIDDEN_LENGTH = 4
"""Shorter values of environment variables are words such as '1', not secrets."""
_HIDE = BeforeValidator(redact_data)
"""Masks a value before validation, because the error message repeats a refused value."""


class RuntimeEnvSettings(Settings):
    """Ray's runtime environment of a job. Ray's documentation describes each field."""

    # pydantic's messages would contain the original value, before it was masked.
    model_config = ConfigDict(hide_input_in_errors=True)

    working_dir: str | None = Field(
        None,
        min_length=1,
        description="Local folder or URL of a .zip that becomes the working folder of every "
        "worker; its modules can be imported.",
    )
    excludes: tuple[str, ...] = Field(
        (), strict=False, description="Patterns, as in .gitignore, of files that are not uploaded."
    )
    py_modules: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Local package folders or wheels, or URLs of a .zip, that every worker can "
        "import.",
    )
    env_vars: Annotated[dict[str, str], _HIDE] = Field(
        {},
        description="Environment variables of every worker. ${NAME} is replaced by a variable of "
        "this process; pass secrets this way.",
    )
    pip: Annotated[tuple[str, ...], _HIDE] = Field(
        (),
        strict=False,
        description="Requirements that pip installs on every machine before its first worker "
        "starts.",
    )

    @field_validator("env_vars", "pip")
    @classmethod
    def _refuse_secrets(cls, value: Any) -> Any:
        texts = value if isinstance(value, tuple) else tuple(value.values())
        if any(MASK in text for text in texts):
            raise ValueError(
                "settings are stored with every run and must not contain a secret: set an "
                "environment variable NAME in this process and write ${NAME} in env_vars"
            )
        return value


def resolve_runtime_env(
    settings: RuntimeEnvSettings | None, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the ``runtime_env`` argument of ``ray.init``. It contains secrets: never log it.

    Args:
        settings: The user's settings; None for the variables that Sluice sets for all workers.
        environ: The environment variables of this process.

    Raises:
        SettingsError: A folder or an environment variable does not exist here.
    """
    own = settings or RuntimeEnvSettings()
    resolved: dict[str, Any] = {
        "env_vars": WORKER_ENVIRONMENT
        | {name: _resolve(name, value, environ) for name, value in own.env_vars.items()}
    }
    if own.working_dir is not None:
        resolved["working_dir"] = _local(own.working_dir, "working_dir")
    if own.py_modules:
        resolved["py_modules"] = [_local(path, "py_modules") for path in own.py_modules]
    if own.excludes:
        resolved["excludes"] = list(own.excludes)
    if own.pip:
        resolved["pip"] = list(own.pip)
    return resolved


def hide_values(text: str, runtime_env: Mapping[str, Any]) -> str:
    """Return ``text`` with the values of environment variables replaced by ``***``."""
    values = set(runtime_env.get("env_vars", {}).values())
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _MIN_HIDDEN_LENGTH:
            text = text.replace(value, MASK)
    return text


def _resolve(name: str, value: str, environ: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1] in environ:
            return environ[match[1]]
        raise SettingsError(
            f"compute.runtime_env.env_vars.{name} needs the environment variable '{match[1]}', "
            f"which is not set.{suggest_nearest(match[1], list(environ))}",
            cause="The variable is read in the process that joins the cluster.",
            fix=f"Set {match[1]} in that process, or correct its name.",
        )

    return _VARIABLE.sub(replacement, value)


def _local(path: str, name: str) -> str:
    if "://" in path or Path(path).expanduser().exists():
        return path if "://" in path else str(Path(path).expanduser().absolute())
    raise SettingsError(
        f"compute.runtime_env.{name}: '{path}' does not exist (relative to {Path.cwd()}).",
        fix="Set a local folder, or the URL of a .zip (https://, s3://, gs://).",
    )
