"""Record of one run, with which the run can be repeated, or compared with another run.

The record contains the versions of only those packages that can affect results. The lock files of
the repository contain the versions of all packages.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.dict_diff import iter_differences
from sluice.base.digests import digest_json
from sluice.base.environment import Environment, GitState, read_environment, read_git
from sluice.base.redaction import redact_command, redact_data
from sluice.base.settings import Record, Settings
from sluice.training.code_identity import CodeIdentity


class RunRecord(Record):
    """Record of what was run, on which data and machine, and by which command."""

    git: GitState
    environment: Environment
    resolved_config: dict[str, Any] = Field(
        description="Every resolved setting, as plain JSON, with secrets redacted."
    )
    config: str = Field(description="Digest of the settings before secrets are redacted.")
    data: str = Field(description="Digest of the feature frame.")
    code: CodeIdentity | None = Field(
        None,
        description="Identity of the code that determines the trained model bit for bit.",
    )
    devices: tuple[str, ...] = Field(description="Name of every accelerator; empty without one.")
    command: tuple[str, ...] = Field(
        description="Command line of the process, as a list of arguments."
    )
    folder: str = Field(description="Working folder at the start.")
    started_at: AwareDatetime

    def differences(self, other: "RunRecord") -> tuple[str, ...]:
        """Return one line for each difference between two runs that may cause different results.

        Command, folder and time are not compared, because they do not affect the result.
        """
        this_run, other_run = (
            run.model_dump(mode="json", exclude={"command", "folder", "started_at", "config"})
            for run in (self, other)
        )
        return tuple(
            f"{name}: {this_value!r} in this run, {other_value!r} in the other run"
            for name, this_value, other_value in iter_differences(this_run, other_run)
        )


def read_run(
    config: Mapping[str, Any] | Settings,
    *,
    data: str,
    code: CodeIdentity | None = None,
    source: Path,
    store: ArtifactStore | None,
    now: datetime,
    command: Sequence[str] | None = None,
) -> RunRecord:
    """Return the record of this process.

    Args:
        config: The resolved settings.
        data: Digest of the feature frame.
        code: Identity of the workload's and the architecture's code, or None.
        source: A folder of the running code. The record describes the git repository that
            contains this folder.
        store: Receives the diff of uncommitted changes, whose digest is in the record. If None,
            only the digest is computed.
        now: Current time, with a time zone.
        command: The command line; the command line of this process if None.
    """
    import torch  # imported here because it takes 1.6 s

    settings = config.model_dump(mode="json") if isinstance(config, Settings) else dict(config)
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return RunRecord(
        git=read_git(source, store=store),
        environment=read_environment(),
        resolved_config=redact_data(settings),
        config=digest_json(settings),
        data=data,
        code=code,
        devices=tuple(torch.cuda.get_device_name(index) for index in range(num_devices)),
        # sys.orig_argv, unlike sys.argv, includes the interpreter and its options.
        command=redact_command(sys.orig_argv if command is None else command),
        folder=os.getcwd(),
        started_at=now,
    )
