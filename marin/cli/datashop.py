"""`marin datashop`: from a pool of documents and a wish to a filtered dataset."""

import argparse
import importlib
import importlib.util
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from marin.errors import ConfigError, MarinError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marin.execution.step import ExecutorStep

HELP = """\
Curate a dataset from examples, a prompt or a target corpus.

  marin datashop                      the page: upload files, say what is wanted, watch, look at what was kept, download
  marin datashop run CONFIG [FLAGS]   run CONFIG, a .py file or a module that defines `config` (a DatashopRunnerConfig) or
                                      `steps`; a finished stage is not run again, an interrupted one goes on

The page listens on this machine only. FLAGS are those of every experiment, such as --prefix and --dry_run:
`marin datashop run CONFIG --help` lists them."""

DEFAULT_PORT = 8323
_EXAMPLE = "experiments/datashop/graph_docs.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [--prefix P] [--port N] [--data DIR]\n       {parser.prog} run CONFIG [FLAGS]"
    parser.add_argument(
        "--prefix",
        metavar="P",
        help="of the page: the folder of outputs; default: MARIN_PREFIX, else local_store in this directory",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help=f"of the page; 0 takes any free one; default: {DEFAULT_PORT}",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DIR",
        help="a folder whose files the page may name by path; may be given several times",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="run CONFIG [FLAGS]")
    run = verbs.add_parser(
        "run",
        usage=f"{parser.prog} run CONFIG [FLAGS]",
        help="run a config file instead of showing the page",
        description=HELP,
    )
    run.add_argument("config", metavar="CONFIG", help=f"such as {_EXAMPLE}")
    run.add_argument("flags", nargs=argparse.REMAINDER, metavar="FLAGS", help="see above").required = False


def run(args: argparse.Namespace) -> int:
    if args.verb is None:
        from marin.site.datashop.serving import serve

        serve(args.prefix, DEFAULT_PORT if args.port is None else args.port, args.data)
        return 0
    from marin.execution import provenance
    from marin.execution.executor import executor_main

    if args.prefix is not None:
        raise ConfigError(
            "`--prefix` stands before `run`, where it is the page's: put it after CONFIG, as in"
            f" `marin datashop run {args.config} --prefix {args.prefix}`"
        )
    if args.port is not None or args.data:
        raise ConfigError(
            "`--port` and `--data` are the page's, which `run` does not show: leave them out, or leave out `run`"
        )

    steps, description, file = steps_of(args.config)
    sys.argv = [f"marin datashop run {shlex.quote(args.config)}", *args.flags]
    started = provenance.script.set(file)
    try:
        executor_main(steps=steps, description=description)
    finally:
        provenance.script.reset(started)
    return 0


def steps_of(name: str) -> "tuple[Sequence[ExecutorStep], str, str]":
    """The steps that a .py file or a module defines, what to call them, and the file.

    Raises:
        ConfigError: there is none, it fails, or it defines neither `config` nor `steps`.
    """
    from marin.datashop.config import DatashopRunnerConfig
    from marin.execution.experiment_file import what_failed
    from marin.execution.step import ExecutorStep
    from marin.site.datashop_report import run_steps

    try:
        module = _imported(name)
    except MarinError:
        raise
    except Exception as error:
        raise ConfigError(what_failed(name, error)) from error
    file = str(module.__file__)
    config, steps = getattr(module, "config", None), getattr(module, "steps", None)
    if isinstance(config, DatashopRunnerConfig):
        return list(run_steps(config).values()), f"Datashop: {config.experiment_name}", file
    if isinstance(steps, dict):
        steps = list(steps.values())
    if isinstance(steps, list | tuple) and steps and all(isinstance(step, ExecutorStep) for step in steps):
        return steps, f"Datashop: {name}", file
    found = "nothing of that name" if config is None and steps is None else f"{type(config or steps).__name__}"
    raise ConfigError(
        f"{name} defines neither `config`, a DatashopRunnerConfig, nor `steps` (found {found}): copy {_EXAMPLE}"
    )


def _imported(name: str) -> Any:
    """The module; a file in a package below the working directory is that package's module, as `python -m` would name it."""
    sys.path.insert(0, os.getcwd())
    if not name.endswith(".py"):
        refusal = ConfigError(f"{name!r} is no .py file and no module: give a file such as {_EXAMPLE}")
        if name.startswith("."):  # the folder itself, or one above
            raise refusal
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
                raise
            raise refusal from None
    if not os.path.isfile(name):
        raise ConfigError(f"{name} is not there: give a file such as {_EXAMPLE}")
    relative = os.path.relpath(name)
    dotted = relative.removesuffix(".py").replace(os.sep, ".")
    if all(part.isidentifier() for part in dotted.split(".")) and os.path.isfile(
        os.path.join(os.path.dirname(relative), "__init__.py")
    ):
        return importlib.import_module(dotted)
    stem = os.path.basename(name).removesuffix(".py")
    if stem in sys.stdlib_module_names:  # it would stand in for that module, here and in worker processes
        raise ConfigError(
            f"{name} has the name of Python's own module {stem!r}: give it another one, such as my_{stem}.py"
        )
    spec = importlib.util.spec_from_file_location(stem, name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module  # so that functions of the file can be sent to other processes
    sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
    spec.loader.exec_module(module)
    return module
