"""Settings of Ray's runtime environment: code, packages and environment variables of workers.

Settings are stored with every run, so they must not contain secrets. Instead, the value of an
environment variable may contain ``${NAME}``, which is replaced by the value of NAME when this
process joins the cluster. The secret itself is not stored.
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

_VARIABLE_PATTERN = re.compile(r"\$\{(\w+)\}")
_MIN_HIDDEN_LENGTH = 4
"""Minimum length of values that are hidden in messages. Shorter values, such as '1', are not
secrets, and hiding them would make messages unreadable."""
_REDACT = BeforeValidator(redact_data)
"""Masks secrets in a value before validation, because the message of a validation error may contain
the value."""


class RuntimeEnvSettings(Settings):
    """Ray's runtime environment of a job. Ray's documentation describes each field."""

    # Keep values out of pydantic's messages, which would contain them before they are masked.
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
    env_vars: Annotated[dict[str, str], _REDACT] = Field(
        {},
        description="Environment variables of every worker. ${NAME} is replaced by the variable "
        "NAME of this process; use it to pass secrets.",
    )
    pip: Annotated[tuple[str, ...], _REDACT] = Field(
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
    """Return the ``runtime_env`` argument of ``ray.init``, which may contain secrets.

    Args:
        settings: The user's settings. With None, the result contains only the environment variables
            that Sluice sets for all workers.
        environ: Environment variables of this process.

    Raises:
        SettingsError: A folder or an environment variable does not exist on this machine.
    """
    settings = settings or RuntimeEnvSettings()
    runtime_env: dict[str, Any] = {
        "env_vars": WORKER_ENVIRONMENT
        | {
            name: _expand_variables(name, value, environ)
            for name, value in settings.env_vars.items()
        }
    }
    if settings.working_dir is not None:
        runtime_env["working_dir"] = _url_or_local_path(settings.working_dir, "working_dir")
    if settings.py_modules:
        runtime_env["py_modules"] = [
            _url_or_local_path(path, "py_modules") for path in settings.py_modules
        ]
    if settings.excludes:
        runtime_env["excludes"] = list(settings.excludes)
    if settings.pip:
        runtime_env["pip"] = list(settings.pip)
    return runtime_env


def hide_values(text: str, runtime_env: Mapping[str, Any]) -> str:
    """Return ``text`` with the values of the workers' environment variables replaced by ``***``.

    Values shorter than ``_MIN_HIDDEN_LENGTH`` are not replaced.
    """
    values = set(runtime_env.get("env_vars", {}).values())
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _MIN_HIDDEN_LENGTH:
            text = text.replace(value, MASK)
    return text


def _expand_variables(name: str, value: str, environ: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        if match[1] in environ:
            return environ[match[1]]
        raise SettingsError(
            f"compute.runtime_env.env_vars.{name} needs the environment variable '{match[1]}', "
            f"which is not set.{suggest_nearest(match[1], list(environ))}",
            cause="The variable is read in the process that joins the cluster.",
            fix=f"Set {match[1]} in that process, or correct its name.",
        )

    return _VARIABLE_PATTERN.sub(replacement, value)


def _url_or_local_path(path: str, setting: str) -> str:
    if "://" in path or Path(path).expanduser().exists():
        return path if "://" in path else str(Path(path).expanduser().absolute())
    raise SettingsError(
        f"compute.runtime_env.{setting}: '{path}' does not exist (relative to {Path.cwd()}).",
        fix="Set a local folder, or the URL of a .zip (https://, s3://, gs://).",
    )
