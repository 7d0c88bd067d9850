"""`marin explain`: why a step would run, and what differs between its versions."""

import argparse
import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marin.errors import ConfigError

if TYPE_CHECKING:
    from marin.execution.explain import Explanation
    from marin.execution.graph import Graph, Node
    from marin.execution.step import ExecutorStep
    from marin.execution.versions import Change, Comparison, Version

HELP = """\
Say why a step would run: the first setting that differs from the closest version of it that was run before.

  marin explain EXPERIMENT STEP   the step as the experiment makes it now, against what is recorded under the prefix
  marin explain EXPERIMENT        every step of the experiment
  marin explain STEP              the recorded versions of a step, each against the one before it

EXPERIMENT is a module or a .py file that ends with executor_main; it is run up to there. STEP is a step's name, the end
of it, or an output path."""

_INDENT = "    "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", metavar="EXPERIMENT | STEP", help="see above")
    parser.add_argument("--prefix", help="where outputs lie (default: $MARIN_PREFIX, then local_store)")
    parser.add_argument("--all", action="store_true", help="list everything that differs, not only the first")
    parser.add_argument("--json", action="store_true", help="print JSON, with everything that differs")


def run(args: argparse.Namespace) -> int:
    from marin.execution.experiment_file import is_experiment
    from marin.execution.versions import recorded_versions
    from marin.storage.prefix import resolve_prefix

    if len(args.what) > 2:
        raise ConfigError(f"{len(args.what)} names were given: expected EXPERIMENT STEP, EXPERIMENT, or STEP")
    prefix = resolve_prefix(args.prefix)
    is_recorded = len(args.what) == 1 and recorded_versions(prefix, _recorded_name(args.what[0], prefix))
    if len(args.what) == 2 or (not is_recorded and is_experiment(args.what[0])):
        return _explain_experiment(args, prefix)
    return _explain_records(args, prefix)


# --- an experiment ------------------------------------------------------------------------------------------------


def _explain_experiment(args: argparse.Namespace, prefix: str) -> int:
    from marin.execution.experiment_file import is_experiment, with_steps_of
    from marin.execution.explain import explain
    from marin.execution.graph import Graph

    experiment, *wanted = args.what
    if not is_experiment(experiment):
        raise ConfigError(
            f"{experiment!r} is no module or .py file that Python finds from {os.getcwd()}: give one such as "
            "experiments.speedrun.hello_world.main, or only a step to see what is recorded of it"
        )
    found: list[Explanation] = []

    def use(steps: "Sequence[ExecutorStep]") -> None:
        graph = Graph(steps, prefix)
        found.extend(explain(graph, _matching(graph, wanted[0]) if wanted else None))

    with_steps_of(experiment, use)
    if args.json:
        _print_json([dataclasses.asdict(one) for one in found])
        return 0
    print("\n\n".join("\n".join(_explanation_lines(one, args.all)) for one in found))
    if not os.path.isdir(prefix) and "://" not in prefix:
        print(f"\nnote: there is no directory {prefix} yet; --prefix names another")
    return 0


def _matching(graph: "Graph", wanted: str) -> "list[Node]":
    """The nodes that `wanted` names: by name, by output path, or by the end of the name."""
    path = wanted.rstrip("/")
    absolute = path if "://" in path else os.path.abspath(path)
    below = f"{graph.prefix}/{path}"
    named = [node for node in graph.nodes if node.name == wanted or node.output_path in (path, absolute, below)]
    named = named or [node for node in graph.nodes if node.name.endswith(f"/{wanted}")]
    if not named:
        names = list(dict.fromkeys(node.name for node in graph.nodes))
        raise ConfigError(f"the experiment has no step {wanted!r}: {_near(wanted, names)}")
    return named


def _near(wanted: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    close += [name for name in names if wanted.rpartition("/")[2] in name and name not in close][:3]
    if close:
        return f"did you mean {' or '.join(close[:3])}?"
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"the steps are {listed}"


def _explanation_lines(one: "Explanation", show_all: bool) -> Iterator[str]:
    yield f"{one.action}: {one.name}"
    yield f"{_INDENT}path     {one.output_path}"
    yield f"{_INDENT}reason   {one.reason}"
    if one.failure:
        yield f"{_INDENT}error    {one.failure}"
    if one.comparison is not None:
        old = one.comparison.old
        yield f"{_INDENT}closest  {old.output_path} ({_state(old)})"
        yield from _comparison_lines(one.comparison, show_all, _INDENT)
    elif one.action == "would run" and not one.failure and one.reason.startswith("never ran"):
        yield f"{_INDENT}no version of it is recorded under the prefix"


# --- records ------------------------------------------------------------------------------------------------------


def _explain_records(args: argparse.Namespace, prefix: str) -> int:
    from marin.execution.versions import compare, read_version, recorded_names, recorded_versions, records_under
    from marin.storage import files

    wanted = args.what[0]
    if not files.exists(prefix):
        raise ConfigError(f"there is no prefix {prefix}: give the one that the step was run with as --prefix")
    name = _recorded_name(wanted, prefix)
    versions = recorded_versions(prefix, name)
    if not versions:
        single = read_version(files.join(prefix, name))
        versions = [single] if single is not None else []
    if not versions:
        known = recorded_names(prefix)
        matching = [one for one in known if one.endswith(f"/{wanted}")]
        if len(matching) == 1:
            name, versions = matching[0], recorded_versions(prefix, matching[0])
        elif not known:
            raise ConfigError(f"there is no recorded step {wanted!r} under {prefix}")
        else:
            raise ConfigError(f"there is no recorded step {wanted!r} under {prefix}: {_near(wanted, known)}")
    find = records_under(prefix)
    rows = [
        (version, compare(older, version, find, find) if older else None)
        for version, older in zip(versions, [*versions[1:], None], strict=True)
    ]
    if args.json:
        _print_json(
            [
                {"version": dataclasses.asdict(version), "comparison": comparison and dataclasses.asdict(comparison)}
                for version, comparison in rows
            ]
        )
        return 0
    print(f"{name}: {len(versions)} version{'s' if len(versions) != 1 else ''} under {prefix}, newest first")
    for version, comparison in rows:
        print(f"\n{version.output_path} ({_state(version)})")
        if comparison is not None:
            print(f"{_INDENT}before   {comparison.old.output_path}")
            print("\n".join(_comparison_lines(comparison, args.all, _INDENT)))
    return 0


def _recorded_name(wanted: str, prefix: str) -> str:
    """The step's name in `wanted`, which may be an output path."""
    path = wanted.rstrip("/")
    if "://" not in path and "://" not in prefix and os.path.isdir(path):
        path = os.path.abspath(path)
    path = path.removeprefix(prefix).lstrip("/")
    return re.sub(r"-[0-9a-f]{8}$", "", path)


# --- what both print ----------------------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    def plain(item: Any) -> Any:
        if isinstance(item, dict):  # dependencies are keyed by pairs
            return {"-".join(key) if isinstance(key, tuple) else key: plain(inner) for key, inner in item.items()}
        return [plain(inner) for inner in item] if isinstance(item, list | tuple) else item

    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def _state(version: "Version") -> str:
    return ", ".join(part for part in (version.status, version.date[:16].replace("T", " ")) if part)


def _comparison_lines(comparison: "Comparison", show_all: bool, indent: str) -> Iterable[str]:
    if comparison.note:
        yield f"{indent}{comparison.note}"
    changes = comparison.changes if show_all else comparison.changes[:1]
    for change in changes:
        yield from _change_lines(change, show_all, indent)
    hidden = len(comparison.changes) - len(changes)
    if hidden:
        yield f"{indent}and {hidden} more {'differ' if hidden > 1 else 'differs'} (--all lists {'them' if hidden > 1 else 'it'})"


def _change_lines(change: "Change", show_all: bool, indent: str) -> Iterable[str]:
    yield f"{indent}differs  {change.place}: {change.old} -> {change.new}"
    if change.inside is not None:
        yield f"{indent}{_INDENT}as {change.inside.new.name} differs:"
        yield from _comparison_lines(change.inside, show_all, indent + _INDENT)
