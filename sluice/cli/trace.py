"""``sluice trace``: what goes wrong inside any PyTorch program, without a change to it."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sluice.base.errors import GATE_SAID_NO, SettingsError
from sluice.base.settings import nearest
from sluice.cli.output import results
from sluice.cli.trace_probe import add_probe

_RUN = "run"
_EXAMPLE = "Example: sluice trace --out traces -- python train.py --epochs 3"


class _RunsWhatFollows(TyperGroup):
    """A group in which everything after two dashes is a program to run."""

    def get_params(self, ctx: Any) -> list[Any]:
        """List the options of a run, too: they stand in its place."""
        options = [p for p in self.commands[_RUN].params if p.param_type_name == "option"]
        return [*options, *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command that runs programs before its arguments."""
        return super().parse_args(ctx, [_RUN, *args] if "--" in args else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a program, or options of a run, without two dashes."""
        known = sorted(set(self.commands) - {_RUN})
        is_known = args[0] in self.commands
        given = any(
            ctx.params[option.name] != option.get_default(ctx)
            for option in self.get_params(ctx)
            if option.name in ctx.params
        )
        if given or not is_known:
            raise SettingsError(
                "A program to trace comes after two dashes, which are missing before "
                f"'{args[0]}'.{'' if is_known else nearest(args[0], known)}",
                cause=f"Without them there are {', '.join(known)}, which take their options after "
                "their name.",
                fix=f"sluice trace [OPTIONS] -- {shlex.join(args)}",
            )
        return super().resolve_command(ctx, args)


def register(app: typer.Typer) -> None:
    """Add ``sluice trace -- ...``, ``sluice trace report`` and ``sluice trace replay``."""
    group = typer.Typer(
        name="trace",
        cls=_RunsWhatFollows,
        help="Trace any PyTorch program: sluice trace [--out DIR] -- python train.py ...",
        epilog=_EXAMPLE,
        no_args_is_help=True,
        subcommand_metavar="-- PROGRAM [ARGS]...",
    )

    @group.command(_RUN, hidden=True, epilog=_EXAMPLE)
    def run(
        command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
        out: Annotated[
            Path | None, typer.Option(help="Folder of the traces.", show_default=False)
        ] = None,
        stop_after: Annotated[
            int,
            typer.Option(
                min=0,
                help="End the program, with its last good state on disk, after so many losses in "
                "a row that are not finite; 0 for never. A state is kept at steps 1, 2, 4, 8 and "
                "so on, then every 100.",
            ),
        ] = 0,
        skip_poisoned: Annotated[
            bool,
            typer.Option(
                "--skip-poisoned",
                help="Leave out steps on the gradients of a loss that is not finite.",
            ),
        ] = False,
    ) -> None:
        """Run a program traced; its exit code is passed on."""
        from sluice.trace.command import run_traced
        from sluice.trace.settings import TraceSettings

        settings = TraceSettings(stop_after=stop_after, skip_poisoned=skip_poisoned)
        code = run_traced(command, out=out, settings=settings, environ=os.environ, cwd=Path.cwd())
        raise typer.Exit(code)

    @group.command("report", epilog="Example: sluice trace report traces")
    def report(
        folder: Annotated[Path, typer.Argument(help="Folder of the traces.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Say what is wrong with the trainings in a folder of traces.

        Exit code 1 when there is an error.
        """
        from sluice.trace.report import as_text, report_on

        reports = report_on(folder)
        if as_json:
            print("[" + ",\n".join(r.model_dump_json() for r in reports) + "]")
        else:
            for one in reports:
                results(markup=False).print(as_text(one))
        if any(d.finding.severity == "error" for r in reports for d in r.diagnoses):
            raise typer.Exit(GATE_SAID_NO)

    @group.command("replay", epilog="Example: sluice trace replay traces")
    def replay(
        folder: Annotated[Path, typer.Argument(help="Folder of the traces.")],
        tensorboard: Annotated[
            Path | None,
            typer.Option(help="Write the curves for TensorBoard, too.", show_default=False),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Write a page for each process that plays its training back."""
        from sluice.trace.replay.write import write_replays, write_tensorboard

        pages = write_replays(folder)
        points = None if tensorboard is None else write_tensorboard(folder, tensorboard)
        if as_json:
            print(json.dumps({"pages": [str(page) for page in pages], "points": points}))
            return
        for page in pages:
            results(markup=False).print(str(page))
        if tensorboard is not None:
            results(markup=False).print(f"{points:,} points in {tensorboard}")

    add_probe(group)
    app.add_typer(group)
