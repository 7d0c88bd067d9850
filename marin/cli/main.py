"""The `marin` command.

Each subcommand is a file beside this one that defines `HELP`, `add_arguments(parser)` and `run(args) -> int`. The table
below is all that `marin --help` reads, so that help costs no import of JAX, numpy or any subcommand. To add a
command, write its file and add its line.
"""

import difflib
import importlib
import sys
import types
from typing import NoReturn

import marin
from marin.errors import clean_exit, reader_may_leave
from marin.flags import Parser

COMMANDS = {  # name -> what it does, in one line; the module is marin.cli.<name>
    "init": "start a speedrun of your own: copy the template and fill in the author",
    "doctor": "say what this machine can do and what to fix",
    "browse": "look at data, runs and where each file came from, in a local web app",
    "show": "say how far a run is, how fast it goes, and where its time went",
    "explain": "say why a step would run, or what differs between its versions",
    "diff": "compare two runs: settings, code, inputs, machine and results",
    "cache": "say what is in a token cache, and whether it is whole",
    "experiment": "begin an experiment: a preregistration, and a file that runs as it stands",
    "report": "write an experiment's report: verdict, curves, cost, and links to every step",
    "table": "print the results of a sweep as they are now",
    "serve": "serve a trained model to OpenAI's clients, with a page to chat on",
    "datashop": "curate a dataset from examples, a prompt or a target corpus",
    "export": "write a run's model as a folder that transformers loads",
    "models": "list trained models with what made them, and publish one on the Hugging Face hub",
    "eval": "evaluate a checkpoint on tasks of EleutherAI's lm-eval",
    "submit": "gather, check and place a finished run, and write its pull request",
    "verify": "say how far a submission can be trusted, rung by rung, and why",
    "sign": "sign a submission, or what you found when you checked another's",
    "power": "say how many runs a claim needs",
    "leaderboard": "build the leaderboard page from a directory of results",
}


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items())
    parser = Parser(
        prog="marin",
        usage="marin COMMAND [ARGUMENTS]",
        description="An open lab for language-model training in one repository.",
        epilog=f"commands:\n{commands}\n\n`marin COMMAND --help` tells more about one of them.",
    )
    parser.add_argument("--version", action="version", version=f"marin {marin.__version__}")
    return parser


def _command_parser(name: str, module: types.ModuleType) -> Parser:
    parser = Parser(
        prog=f"marin {name}",
        description=module.HELP,
    )
    module.add_arguments(parser)
    return parser


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand and returns its exit status; `argv` excludes the program's name."""
    if not argv:
        _overview().print_help()
        return 0
    name, *rest = argv
    if name.startswith("-"):
        _overview().parse_args([name])
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
        hint = f"did you mean `marin {close[0]}`?" if close else f"commands are {', '.join(COMMANDS)}"
        print(f"error: unknown command {name!r}: {hint} (`marin --help` lists all)", file=sys.stderr)
        return 2
    module = importlib.import_module(f"marin.cli.{name.replace('-', '_')}")
    return int(module.run(_command_parser(name, module).parse_args(rest)))


def main() -> NoReturn:
    """Entry point of the `marin` command."""
    status = 0
    with clean_exit("run the same command again"):  # some, as `marin verify --rerun`, begin anew
        with reader_may_leave():
            status = dispatch(sys.argv[1:])
    sys.exit(status)


if __name__ == "__main__":
    main()
