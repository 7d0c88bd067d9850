"""`marin diff`: two runs side by side."""

import argparse
import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from marin.errors import ConfigError, ResultsError

if TYPE_CHECKING:
    from marin.execution.versions import Change, Comparison

HELP = """\
Compare two runs: settings, code, inputs, commit, packages, machine, times, output and, for training runs, the last metrics.

A and B are output paths, or below the prefix `name-1a2b3c4d`; a file in an output, such as its speedrun_results.json,
stands for the output. Settings are listed where they differ, everything else is listed always.
Exit status: 0 the same identity, 1 different, 2 an error."""

_CODE = re.compile(r".* \(code [0-9a-f]{16}\)", re.DOTALL)
_ABSENT = "-"
_RECORDED = {  # title -> keys of .executor_info
    "identity": ("name", "fingerprint"),
    "source": ("git_commit", "git_dirty", "git_diff", "lock_digest"),
    "machine": ("host", "worker_id"),
    "times": ("start_date", "end_date", "seconds"),
    "output": ("output_digest", "output_bytes", "output_files"),
}


@dataclasses.dataclass(frozen=True)
class Line:
    section: str
    key: str
    a: Any
    b: Any

    @property
    def differs(self) -> bool:
        return bool(self.a != self.b)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="output path of the first run")
    parser.add_argument("b", metavar="B", help="output path of the second run")
    parser.add_argument("--prefix", help="where outputs lie (default: $MARIN_PREFIX, then local_store)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from marin.execution import versions
    from marin.storage.prefix import resolve_prefix

    prefix = resolve_prefix(args.prefix)
    paths = [_output_path(path, prefix) for path in (args.a, args.b)]
    old, new = (_must(versions.read_version(path)) for path in paths)
    found = [versions.records_under(_prefix_of(version.output_path, version.name) or prefix) for version in (old, new)]
    comparison = versions.compare(old, new, found[0], found[1])
    same = bool(old.fingerprint) and old.fingerprint == new.fingerprint
    lines = list(_lines(comparison))
    if args.json:
        records = [{**dataclasses.asdict(line), "differs": line.differs} for line in lines]
        print(json.dumps({"a": paths[0], "b": paths[1], "same_identity": same, "lines": records}, indent=2))
    else:
        _show(paths, lines, comparison, same)
    return 0 if same else 1


# --- which outputs ------------------------------------------------------------------------------------------------


def _output_path(path: str, prefix: str) -> str:
    """The output directory that `path` names: itself, below the prefix, or the directory that the file lies in."""
    from marin.execution.status import INFO_NAME
    from marin.execution.versions import recorded_names
    from marin.storage import files

    given = path.rstrip("/")
    local = given if "://" in given else os.path.abspath(given)
    for candidate in (local, local.rpartition("/")[0], files.join(prefix, given)):
        if candidate and files.exists(files.join(candidate, INFO_NAME)):
            return candidate
    known = recorded_names(prefix) if files.exists(prefix) else []
    close = difflib.get_close_matches(re.sub(r"-[0-9a-f]{8}$", "", given.removeprefix(prefix).lstrip("/")), known, n=3)
    hint = (
        f"; under {prefix} there is {', '.join(close)}: `marin explain {close[0]}` lists its outputs" if close else ""
    )
    missing = "" if files.exists(local) or files.exists(files.join(prefix, given)) else ", nor any file"
    raise ConfigError(f"{path} is no output of a step: there is no {INFO_NAME} in it{missing}{hint}")


def _prefix_of(output_path: str, name: str) -> str | None:
    base = re.sub(r"-[0-9a-f]{8}$", "", output_path)
    return base.removesuffix(f"/{name}") if name and base.endswith(f"/{name}") else None


def _must(value: Any) -> Any:
    assert value is not None
    return value


# --- what is compared ---------------------------------------------------------------------------------------------


def _lines(comparison: "Comparison") -> Iterator[Line]:
    from marin.execution.status import read_info

    paths = (comparison.old.output_path, comparison.new.output_path)
    infos: list[Mapping[str, Any]] = [read_info(path) or {} for path in paths]
    first, *others = _RECORDED.items()
    yield from _recorded(*first, infos)
    yield Line("identity", "status", comparison.old.status, comparison.new.status)
    changes = list(_all_changes(comparison, ""))
    for section, is_code in (("config", False), ("code", True)):
        for place, change in changes:
            if bool(_CODE.fullmatch(change.old) or _CODE.fullmatch(change.new)) is is_code:
                yield Line(section, place, change.old, change.new)
    yield from _dependencies(comparison)
    for title, keys in others:
        yield from _recorded(title, keys, infos)
    figures = [_figures(path) for path in paths]
    for key in dict.fromkeys([*figures[0], *figures[1]]):
        yield Line("metrics", key, figures[0].get(key), figures[1].get(key))


def _recorded(title: str, keys: tuple[str, ...], infos: list[Mapping[str, Any]]) -> Iterator[Line]:
    for key in keys:
        yield Line(title, key, infos[0].get(key), infos[1].get(key))


def _all_changes(comparison: "Comparison", where: str) -> "Iterator[tuple[str, Change]]":
    """Every change with its place; those of a step that is read follow its own, with its name before them."""
    for change in comparison.changes:
        yield where + change.place, change
        if change.inside is not None:
            yield from _all_changes(change.inside, f"{change.inside.new.name or change.inside.old.name}: ")


def _dependencies(comparison: "Comparison") -> Iterator[Line]:
    sides: list[dict[str, str]] = []
    for version in (comparison.old, comparison.new):
        by_name: dict[str, list[str]] = {}
        for name, digest in version.dependencies:
            by_name.setdefault(name, []).append(digest)
        sides.append({name: ", ".join(sorted(digests)) for name, digests in by_name.items()})
    for name in dict.fromkeys([*sides[1], *sides[0]]):
        yield Line("dependencies", name, sides[0].get(name), sides[1].get(name))


def _figures(directory: str) -> dict[str, Any]:
    """The last metrics of a training output, as far as it has got."""
    from marin.storage import files
    from marin.tracking.run_record import METRICS_FILE, RUN_FILE, RunRecord

    here = [files.exists(files.join(directory, name)) for name in (RUN_FILE, METRICS_FILE)]
    if not files.is_local(directory) or not all(here):
        return {}
    try:
        record = RunRecord.open(files.local_path(directory))
        steps, evaluations = record.steps(), record.of("evaluation")
    except ResultsError as error:
        return {"unreadable": str(error)}
    figures: dict[str, Any] = {"steps": len(steps)}
    if steps:
        figures["loss"] = steps[-1].get("loss")
        figures["training_time"] = round(sum(step.get("step_time", 0.0) for step in steps), 3)
        figures["tokens"] = sum(step.get("tokens", 0) for step in steps)
    if evaluations:
        figures["bits_per_byte"] = evaluations[-1].get("bits_per_byte")
    starts = record.of("start")
    figures["compile_time"] = round(sum(start.get("compile_time", 0.0) for start in starts), 3)
    figures["resumed"] = max(len(starts) - 1, 0)
    figures["complete"] = record.is_complete
    return figures


# --- the table ----------------------------------------------------------------------------------------------------


def _show(paths: list[str], lines: list[Line], comparison: "Comparison", same: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    table.add_column("")
    table.add_column("")  # the mark of what differs, for terminals and eyes without colours
    for side, path in zip("AB", paths, strict=True):
        table.add_column(Text(f"{side}  {path}", overflow="fold"), overflow="fold")
    section = None
    for line in lines:
        cells = [
            line.section if line.section != section else "",
            line.key,
            "≠" if line.differs else "",
            _shown(line.a),
            _shown(line.b),
        ]
        if section is not None and line.section != section:
            table.add_section()
        section = line.section
        table.add_row(*map(Text, cells), style="bold" if line.differs else "dim")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 240
    console.print(table)
    for title in ("config", "code"):
        if not any(line.section == title for line in lines):
            print(f"{title}: no difference" if not comparison.note else f"{title}: {comparison.note}")
    print("the same identity" if same else "different identities")


def _shown(value: Any) -> str:
    if value is None:
        return _ABSENT
    return f"{value:.6g}" if isinstance(value, float) else str(value)
