"""Record of one run: enough to repeat it, or to find what is different.

The lock files contain the versions of all packages; ``environment`` contains those that can change
a number.
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
    """What was run, on which data and machine, by which command."""

    git: GitState
    environment: Environment
    resolved_config: dict[str, Any] = Field(description="Every resolved setting, as plain JSON.")
    config: str = Field(description="Digest of resolved_config.")
    data: str = Field(description="Digest of the feature frame.")
    code: CodeIdentity | None = Field(
        None,
        description="Identity of the code that determines the bits, and imports that could "
        "not be followed.",
    )
    devices: tuple[str, ...] = Field(description="Name of every accelerator; empty without one.")
    command: tuple[str, ...] = Field(
        description="Command line of the process, as a list of arguments."
    )
    folder: str = Field(description="Working folder at the start.")
    started_at: AwareDatetime

    def differences(self, other: "RunRecord") -> tuple[str, ...]:
        """Return a line for everything that may cause different bits in two runs.

        Command, folder and time are excluded: they do not affect the result.
        """
        own, others = (
            run.model_dump(mode="json", exclude={"command", "folder", "started_at", "config"})
            for run in (self, other)
        )
        return tuple(
            f"{name}: {mine!r} in this run, {theirs!r} in the other"
            for name, mine, theirs in iter_differences(own, others)
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
        source: A folder of the running code; git describes the repository that contains it.
        store: Stores the diff against the commit; the record contains its digest. With None only
            the digest is computed.
        now: Current time, with a time zone.
        command: The command line; that of this process if None.
    """
    import torch  # 1.6 s to import

    plain = config.model_dump(mode="json") if isinstance(config, Settings) else dict(config)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return RunRecord(
        git=read_git(source, store=store),
        environment=read_environment(),
        resolved_config=redact_data(plain),
        config=digest_json(plain),
        data=data,
        code=code,
        devices=tuple(torch.cuda.get_device_name(index) for index in range(count)),
        # orig_argv instead of argv: it includes the interpreter and its options.
        command=redact_command(sys.orig_argv if command is None else command),
        folder=os.getcwd(),
        started_at=now,
    )
