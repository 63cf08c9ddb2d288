"""The command line ``sluice``.

Exit codes: 0 success, 1 a gate did not pass, 2 an error of the user, 3 an internal error.

Each module of ``sluice.cli`` registers one group of commands. Commands that
need Dagster are in ``sluice.cli.orchestration``; the others start without it.
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
from sluice.base.command_lines import make_commands_runnable, program_name
from sluice.base.errors import EXIT_INTERNAL_ERROR, EXIT_INTERRUPTED, EXIT_USER_ERROR, SluiceError
from sluice.base.redaction import redact, redact_logs
from sluice.observability import spans

TYPER_INTERRUPTED = 130
"""Exit code of Typer on Ctrl-C."""

_WORLD_WRITABLE = 0o002
"""Permission that no file created by a command has, whatever the umask: everybody could send
requests to a world-writable socket, such as that of Dagster's code server."""

SHARED = ("orchestration.commands", "bench.app")
"""Modules that are always registered, because they add several commands or extend a group."""

COMMANDS = (
    "init",
    "list",
    "pack",
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
"""Modules of ``sluice.cli`` with a function ``register``, by the name of their command."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """Return the application with all commands, or with ``wanted`` alone if it is known.

    Registering the other commands would import modules for one to two seconds.
    """
    app = typer.Typer(
        name="sluice",
        help="A gated pipeline from data to a served PyTorch model.",
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
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"sluice {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run one command and exit with its code."""
    _open_standard_streams()
    os.umask(os.umask(0) | _WORLD_WRITABLE)
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # handled like Ctrl-C: files stay complete
    raise SystemExit(run_command(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Redirect closed standard streams to ``os.devnull``.

    Otherwise the next file that is opened would get their descriptor.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed on stderr."""
    as_json = "--json" in arguments
    # Typer's own renderer of usage errors ("Did you mean ...") runs inside the standalone mode.
    redact_logs()
    try:
        spans.configure(os.environ, service="sluice")
        app = build_app(arguments[0] if arguments else None)
        app(args=arguments, prog_name="sluice", standalone_mode=True)
    except SystemExit as stop:
        if stop.code == TYPER_INTERRUPTED:
            return _interrupted()
        return stop.code if isinstance(stop.code, int) else EXIT_USER_ERROR
    except SluiceError as error:
        _print_error(error, arguments, as_json=as_json)
        return error.exit_code
    except BrokenPipeError:  # the reader of the output exited, as in `sluice ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        print(
            redact(
                f"{traceback.format_exc()}"
                f"\nInternal error of Sluice: {type(error).__name__}: {error}\n"
            )
            + "do:  Report it with the lines above. No file was left incomplete.",
            file=sys.stderr,
        )
        return EXIT_INTERNAL_ERROR
    return 0


def _interrupted() -> int:
    print("Interrupted. Completed work is kept.", file=sys.stderr)
    return EXIT_INTERRUPTED


def _print_error(error: SluiceError, arguments: list[str], *, as_json: bool) -> None:
    program = program_name(sys.argv[0], cwd=Path.cwd(), path=os.environ.get("PATH"))
    what, cause, fix = (
        make_commands_runnable(text, arguments, program=program)
        for text in (error.what, error.cause, error.fix)
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
