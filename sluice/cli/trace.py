"""``sluice trace``: finds silent faults in a PyTorch program, without changes of the program."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sluice.base.errors import EXIT_GATE_BLOCKED, SettingsError
from sluice.base.settings import suggest_nearest
from sluice.cli.output import results_console
from sluice.cli.trace_probe import add_probe

_RUN = "run"
_EXAMPLE = "Example: sluice trace --out traces -- python train.py --epochs 3"


class _TraceGroup(TyperGroup):
    """Command group in which everything after two dashes is a program to run."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the group and the options of the hidden command ``run``."""
        run_options = [p for p in self.commands[_RUN].params if p.param_type_name == "option"]
        return [*run_options, *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the name of the hidden command ``run`` if the arguments contain two dashes."""
        return super().parse_args(ctx, [_RUN, *args] if "--" in args else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Reject a program without two dashes, and options of ``run`` before another command."""
        visible_commands = sorted(set(self.commands) - {_RUN})
        is_known = args[0] in self.commands
        has_run_options = any(
            ctx.params[option.name] != option.get_default(ctx)
            for option in self.get_params(ctx)
            if option.name in ctx.params
        )
        if has_run_options or not is_known:
            raise SettingsError(
                "A program to trace must follow two dashes, which are missing before "
                f"'{args[0]}'.{'' if is_known else suggest_nearest(args[0], visible_commands)}",
                cause=f"Without dashes, only the commands {', '.join(visible_commands)} are "
                "accepted, with the options of the command after its name.",
                fix=f"Leave out the options before '{args[0]}'. To list the options of this "
                f"command: sluice trace {args[0]} --help"
                if is_known
                else f"sluice trace [OPTIONS] -- {_command_line(args)}",
            )
        return super().resolve_command(ctx, args)


def _command_line(args: list[str]) -> str:
    """Return a command as typed in a shell; a Python file is started with its interpreter."""
    return shlex.join(["python", *args] if args[0].endswith(".py") else args)


def register(app: typer.Typer) -> None:
    """Add ``sluice trace -- ...``, and its commands ``report``, ``replay`` and ``probe``."""
    group = typer.Typer(
        name="trace",
        cls=_TraceGroup,
        help="Trace any PyTorch program: sluice trace [--out DIR] -- python train.py ...",
        epilog=_EXAMPLE,
        no_args_is_help=True,
        subcommand_metavar="-- PROGRAM [ARGS]...",
    )

    @group.command(_RUN, hidden=True, epilog=_EXAMPLE)
    def run(
        command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder of the traces. Default: a new folder in SLUICE_HOME/traces.",
                show_default=False,
            ),
        ] = None,
        stop_after: Annotated[
            int,
            typer.Option(
                min=0,
                help="Stop the program after this number of consecutive non-finite losses, and "
                "store the last good state of the program; 0 for never. The state is copied after "
                "0, 1, 2, 4, 8, ... steps, then every 100 steps.",
            ),
        ] = 0,
        skip_nonfinite: Annotated[
            bool,
            typer.Option(
                "--skip-nonfinite",
                help="Skip the optimizer steps that would use the gradients of a non-finite loss.",
            ),
        ] = False,
    ) -> None:
        """Run a program with the tracer; exit with its exit code."""
        from sluice.trace.command import run_traced
        from sluice.trace.settings import TraceSettings

        settings = TraceSettings(stop_after=stop_after, skip_nonfinite=skip_nonfinite)
        exit_code = run_traced(
            command, out=out, settings=settings, environ=os.environ, cwd=Path.cwd()
        )
        raise typer.Exit(exit_code)

    @group.command("report", epilog="Example: sluice trace report traces")
    def report(
        folder: Annotated[Path, typer.Argument(help="Folder of the traces.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Report the faults in a folder of traces.

        Exit code 1 when a finding has the severity error.
        """
        from sluice.trace.report.trace_report import format_report, report_traces

        reports = report_traces(folder)
        if as_json:
            print("[" + ",\n".join(report.model_dump_json() for report in reports) + "]")
        else:
            for trace_report in reports:
                results_console(markup=False).print(format_report(trace_report))
        diagnoses = [diagnosis for report in reports for diagnosis in report.diagnoses]
        if any(diagnosis.finding.severity == "error" for diagnosis in diagnoses):
            raise typer.Exit(EXIT_GATE_BLOCKED)

    @group.command("replay", epilog="Example: sluice trace replay traces")
    def replay(
        folder: Annotated[Path, typer.Argument(help="Folder of the traces.")],
        tensorboard: Annotated[
            Path | None,
            typer.Option(
                help="Also write the curves for TensorBoard to this folder.", show_default=False
            ),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Write one page per traced process, which replays the training of the process."""
        from sluice.trace.report.replay.export import write_replays, write_tensorboard

        pages = write_replays(folder)
        num_points = None if tensorboard is None else write_tensorboard(folder, tensorboard)
        if as_json:
            print(json.dumps({"pages": [str(page) for page in pages], "points": num_points}))
            return
        for page in pages:
            results_console(markup=False).print(str(page))
        if tensorboard is not None:
            results_console(markup=False).print(f"{num_points:,} points written to {tensorboard}")

    add_probe(group)
    app.add_typer(group)
