"""Registry commands in messages work as printed; the user fills in only the reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COMMAND = re.compile(r"sluice registry (?:promote|rollback|approve) [^\"]*")
_LINE_BREAK = re.compile(r"\"\s*\n\s*f?\"")


def test_printed_registry_commands_have_the_required_reason() -> None:
    commands = [
        command
        for folder in ("sluice", "assets", "checks", "pipelines")
        for file in (ROOT / folder).rglob("*.py")
        for command in _COMMAND.findall(_LINE_BREAK.sub("", file.read_text()))
    ]

    assert len(commands) >= 5
    assert [command for command in commands if "--reason" not in command] == []
