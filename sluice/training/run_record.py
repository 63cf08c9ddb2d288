"""The record of one run: enough to start it again as it was, or to see what is different (REPRO-5).

The lock files hold the versions of everything else; ``environment`` names what can change a
number.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, Field

from sluice.base.artifacts import ArtifactStore
from sluice.base.dict_diff import differing
from sluice.base.digests import digest_json
from sluice.base.environment import Environment, GitState, read_environment, read_git
from sluice.base.redaction import redact_command, redact_data
from sluice.base.settings import Record, Settings
from sluice.training.code_identity import CodeIdentity


class RunRecord(Record):
    """What was run, on what, by which command."""

    git: GitState
    environment: Environment
    resolved_config: dict[str, Any] = Field(description="Every setting as used, plain JSON.")
    config: str = Field(description="Digest of resolved_config.")
    data: str = Field(description="Digest of the feature frame.")
    code: CodeIdentity | None = Field(
        None, description="The code that determines the bits, and what of it could not be followed."
    )
    devices: tuple[str, ...] = Field(description="Name of every accelerator; empty on a CPU.")
    command: tuple[str, ...] = Field(description="The process's command line, word by word.")
    folder: str = Field(description="Where it was started.")
    started_at: AwareDatetime

    def differences(self, other: "RunRecord") -> tuple[str, ...]:
        """Return a line for everything that may make the bits of two runs differ.

        Command, folder and time stay out: they say how a run was started, not what it computed.
        """
        here, there = (
            run.model_dump(mode="json", exclude={"command", "folder", "started_at", "config"})
            for run in (self, other)
        )
        return tuple(
            f"{name}: {mine!r} here, {theirs!r} there"
            for name, mine, theirs in differing(here, there)
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
        code: Identity of the workload's and the architecture's code; None where there is none.
        source: A folder of the code that runs; git is asked about the repository around it.
        store: Where the diff against the commit is kept; its digest is in the record. None keeps
            the digest alone.
        now: With a time zone.
        command: The command line; this process's own when absent.
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
        # orig_argv and not argv: it has the interpreter and its options too.
        command=redact_command(sys.orig_argv if command is None else command),
        folder=os.getcwd(),
        started_at=now,
    )
