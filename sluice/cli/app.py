"""``sluice``: the command line. Exit codes: 0 done, 1 a gate said no, 2 your mistake, 3 broken.

Each module of ``sluice.cli`` registers one group of commands. Those that need Dagster are in
``sluice.cli.orchestration``, so that the other commands start without it.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from sluice import __version__
from sluice.base.command_lines import program_name, runnable
from sluice.base.errors import BROKEN, INTERRUPTED, USER_MISTAKE, SluiceError
from sluice.base.redaction import redact, redact_logs
from sluice.observability import tracing

TYPER_INTERRUPTED = 130
"""What Typer leaves with on Ctrl-C."""

_WORLD_WRITABLE = 0o002
"""Permission that no file of a command has, whatever the umask: a socket that everybody can write
to takes orders from everybody, that of Dagster's code server among them."""

SHARED = ("orchestration.commands", "bench.app")
"""Modules that are always registered: each adds several commands, or adds to a group of others."""

COMMANDS = (
    "list",
    "poc",
    "trace",
    "gate",
    "judge",
    "drift",
    "suites",
    "registry",
    "serve",
    "tokens",
    "rollout",
    "doctor",
)
"""Each is a module of ``sluice.cli`` with a function ``register``."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with every command, or with ``wanted`` alone when it is one of ours.

    What the other commands import would cost a second or two.
    """
    app = typer.Typer(
        name="sluice",
        help="A gated line from data to a served PyTorch model.",
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_start)
    for name in (*SHARED, *((wanted,) if wanted in COMMANDS else COMMANDS)):
        importlib.import_module(f"sluice.cli.{name}").register(app)
    return app


def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"sluice {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run one command and leave with its exit code."""
    _open_standard_streams()
    os.umask(os.umask(0) | _WORLD_WRITABLE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: nothing torn
    raise SystemExit(run_command(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Point streams that the caller closed to nowhere, so that no other file takes their place."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; what went wrong is said on stderr."""
    as_json = "--json" in arguments
    # Typer's own renderer of usage errors ("Did you mean ...") runs inside the standalone mode.
    redact_logs()
    try:
        tracing.start(os.environ, service="sluice")
        app = build_app(arguments[0] if arguments else None)
        app(args=arguments, prog_name="sluice", standalone_mode=True)
    except SystemExit as leave:
        if leave.code == TYPER_INTERRUPTED:
            return _interrupted()
        return leave.code if isinstance(leave.code, int) else USER_MISTAKE
    except SluiceError as error:
        _say(error, arguments, as_json=as_json)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output left, as in `sluice ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        print(
            redact(
                f"{traceback.format_exc()}"
                f"\nSomething broke in Sluice itself: {type(error).__name__}: {error}\n"
            )
            + "do:  Please report it with the lines above. Nothing half-written is left.",
            file=sys.stderr,
        )
        return BROKEN
    return 0


def _interrupted() -> int:
    print("Interrupted. What was finished is kept.", file=sys.stderr)
    return INTERRUPTED


def _say(error: SluiceError, arguments: list[str], *, as_json: bool) -> None:
    program = program_name(sys.argv[0], cwd=Path.cwd(), path=os.environ.get("PATH"))
    what, cause, fix = (
        runnable(text, arguments, program=program) for text in (error.what, error.cause, error.fix)
    )
    if as_json:
        print(
            json.dumps(
                {
                    "error": type(error).__name__,
                    "what": what,
                    "why": cause,
                    "do": fix,
                    "exit_code": error.exit_code,
                }
            )
        )
        return
    print(f"error: {what}", file=sys.stderr)
    if cause:
        print(f"why:   {cause}", file=sys.stderr)
    print(f"do:    {fix}", file=sys.stderr)
