"""The command line ``sluice``.

Exit codes: 0 success; 1 a gate did not pass, or a training or search failed; 2 a user error, or
unusable input or state; 3 an internal error; 130 interrupted.

A module of ``sluice.cli`` registers a command or a group of commands. A module is imported only
when one of its commands runs; listing the commands imports no module. Commands that need Dagster
are in ``sluice.cli.orchestration``.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from sluice import __version__
from sluice.base.command_lines import make_commands_runnable, program_name
from sluice.base.errors import EXIT_INTERNAL_ERROR, EXIT_INTERRUPTED, EXIT_USER_ERROR, SluiceError
from sluice.base.extras import naming_extras
from sluice.base.garbage_collection import skip_collection_at_exit
from sluice.base.redaction import redact, redact_logs
from sluice.observability import spans

TYPER_INTERRUPTED = 130
"""Exit code of Typer on Ctrl-C."""

_WORLD_WRITABLE = 0o002
"""Permission bit that every command adds to its umask, so that no new file or socket is
world-writable. Everybody could send requests to a world-writable socket of Dagster's code
server."""


class Command(NamedTuple):
    """One command or group of commands, as listed by ``sluice --help``."""

    modules: tuple[str, ...]
    """Modules of ``sluice.cli`` whose function ``register`` adds the command."""
    help: str
    """Summary of the command: the first sentence of its help page."""


COMMANDS = {
    "init": Command(
        ("init",), "Write a pipeline for your data: NAME.yaml, NAME.py and test_NAME.py."
    ),
    "run": Command(
        ("orchestration.commands",),
        "Run a pipeline from raw rows to a verdict, and promote a candidate that is better.",
    ),
    "tune": Command(
        ("orchestration.commands",),
        "Search for better settings with Ray Tune, on rows outside the test sets.",
    ),
    "dev": Command(
        ("orchestration.commands",),
        "Open the Dagster UI with schedules and sensors on http://127.0.0.1:3000.",
    ),
    "explain": Command(
        ("explain",),
        "Explain a fault that the POC gate, the tracer, a diagnosis or a rollout reported.",
    ),
    "list": Command(("list",), "List the pipelines that other commands accept by name."),
    "pack": Command(("pack",), "Write a stream of records once to shards with random access."),
    "poc": Command(
        ("poc",),
        "Run the POC gate: checks of a few seconds on real data, before hours of training.",
    ),
    "gate": Command(("gate",), "Test whether the candidate is better than the baseline."),
    "judge": Command(
        ("judge",),
        "Measure which answers a language model prefers, and whether its choices are reliable.",
    ),
    "drift": Command(("drift",), "Test which columns of a window have drifted from the reference."),
    "serve": Command(
        ("serve",),
        "Serve predictions of the production model, and switch when production changes.",
    ),
    "doctor": Command(
        ("doctor", "orchestration.commands"),
        "Check that everything a run needs is available; each problem is printed with its fix.",
    ),
    "bench": Command(("bench.app",), "Benchmarks of speed and of error rates on this machine."),
    "trace": Command(
        ("trace",),
        "Trace any PyTorch program: sluice trace [--out DIR] -- python train.py ...",
    ),
    "suites": Command(
        ("suites",),
        "Regression suites: named sets of rows that every candidate is tested on.",
    ),
    "registry": Command(
        ("registry",), "Versions of models: what is in production, why, and how to roll back."
    ),
    "tokens": Command(("tokens",), "Named access tokens of a server."),
    "rollout": Command(("rollout",), "Rollouts of challengers into production."),
}
"""All commands, in the order in which the help lists them."""


def build_app(only_command: str | None = None) -> typer.Typer:
    """Return the application with all commands, or only with ``only_command`` if it is known.

    The imports for all commands take one to two seconds.
    """
    app = _empty_app()
    commands = [COMMANDS[only_command]] if only_command in COMMANDS else COMMANDS.values()
    for module in dict.fromkeys(module for command in commands for module in command.modules):
        importlib.import_module(f"sluice.cli.{module}").register(app)
    return app


def build_outline() -> typer.Typer:
    """Return the application with only the names and summaries of the commands.

    The application can list the commands, and suggest a command for a misspelled name. No module of
    a command is imported.
    """
    app = _empty_app()
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_not_registered)
    return app


def _empty_app() -> typer.Typer:
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
    return app


def _not_registered() -> None:
    raise AssertionError("This application can list the commands, but cannot run them.")


def _app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the commands that the arguments need."""
    if arguments and arguments[0] in COMMANDS:
        return build_app(arguments[0])
    # An option of ``sluice`` itself may precede the command, as in 'sluice --version run'.
    return build_app() if COMMANDS.keys() & set(arguments) else build_outline()


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
    skip_collection_at_exit()
    _open_standard_streams()
    os.umask(os.umask(0) | _WORLD_WRITABLE)
    # SIGTERM is handled like Ctrl-C, so that no file is left incomplete.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(run_command(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Redirect closed standard streams to ``os.devnull``.

    The next file that this process opens would otherwise get the descriptor of a closed stream.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is ``descriptor``
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; errors are printed on stderr."""
    as_json = "--json" in arguments
    redact_logs()
    try:
        with naming_extras(f"sluice {arguments[0]}" if arguments else "sluice"):
            spans.configure(os.environ, service="sluice")
            app = _app_for(arguments)
            # Typer renders usage errors ("Did you mean ...") only in the standalone mode.
            app(args=arguments, prog_name="sluice", standalone_mode=True)
    except SystemExit as stop:
        if stop.code == TYPER_INTERRUPTED:
            return _report_interrupt()
        return stop.code if isinstance(stop.code, int) else EXIT_USER_ERROR
    except SluiceError as error:
        _print_error(error, arguments, as_json=as_json)
        return error.exit_code
    except BrokenPipeError:  # the reader of the output exited, as in `sluice ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _report_interrupt()
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


def _report_interrupt() -> int:
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
