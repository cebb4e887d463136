"""The command line: which commands there are, and how an error ends one.

A command's module is imported when the command is called (all of them for --help), so that none pays for the others. An
error is one line per problem on stderr, in the words that Python's exception has; exit code 1, and 2 for a wrong usage.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer

from omnistage import __version__
from omnistage.config.problems import problems_of
from omnistage.core.errors import ConfigError, OmniError

COMMANDS = {
    "serve": "omnistage.cli.serve",
    "generate": "omnistage.cli.generate",
    "fetch": "omnistage.cli.fetch",
    "models": "omnistage.cli.models",
    "config": "omnistage.cli.config",
    "debug": "omnistage.cli.debug",
    "collect-env": "omnistage.cli.collect_env",
}
_GROUPS = ("config", "debug")
_WITH_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
_TAKES_OVERRIDES = ("serve", "generate")
_HELP = {"help_option_names": ["-h", "--help"]}


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; ends with SystemExit."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        application(given)(given, prog_name="omnistage")
    except OmniError as error:
        for line in problems_of(error) if isinstance(error, ConfigError) else (error.message,):
            typer.echo(f"error: {line}", err=True)
        sys.exit(1)


def application(arguments: list[str]) -> typer.Typer:
    """The commands: the one that is called, or all of them where none is."""
    app = typer.Typer(
        name="omnistage",
        help="Serves models that read and write several modalities.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # whose tables cut the names of flags, and give those that take no value one
        context_settings=_HELP,
    )
    app.callback()(_root)
    for name in arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS:
        module: Any = importlib.import_module(COMMANDS[name])
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            settings = _WITH_OVERRIDES if name in _TAKES_OVERRIDES else None
            app.command(name, context_settings=settings)(module.run)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass
