"""A directory of many submissions: read by several processes, and from what was kept, it gives the same rows."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from example_runs import run_json

import marin
from marin.speedrun.board import row_store
from marin.speedrun.board.leaderboard import collect
from marin.speedrun.board.row_store import RowStore
from marin.speedrun.board.rows import Row, Unreadable
from marin.speedrun.importers import read_results_tree, results_tree

# A process of its own, since one that has JAX, as that of the tests, cannot be forked.
_READ = """
import json, os, sys, time
from marin import parts
from marin.speedrun.importers import read_results_tree, results_tree
from marin.speedrun.board.row_store import RowStore

directory, cache, fewest = sys.argv[1:]
parts.FEWEST, parts.num_processors, here = int(fewest), lambda: 3, os.getpid()
read_file, by_this_process = results_tree.read_results_file, []

def read(*arguments):
    by_this_process.append(1)
    if os.getpid() == here and int(fewest) == 1:
        time.sleep(0.5)  # in which children take the rest
    return read_file(*arguments)

results_tree.read_results_file = read
store = RowStore(cache)
rows = [vars(row) | {"verdict": row.verdict.model_dump_json()} if hasattr(row, "verdict") else vars(row) for row in
        read_results_tree(directory, None, store)]
store.save()
print(json.dumps([len(by_this_process), rows], default=str))
"""


def _write(folder: pathlib.Path, **changes: object) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "speedrun_results.json"
    path.write_text(json.dumps(run_json(**changes)))
    return path


def _read(tree: pathlib.Path, cache: pathlib.Path, fewest: int) -> list[object]:
    command = [sys.executable, "-c", _READ, str(tree), str(cache), str(fewest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return list(json.loads(done.stdout))


def test_rows_read_by_children_and_from_what_was_kept_are_those_of_one_process(tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    for number in range(9):
        _write(tree / f"family_{number % 2}" / f"size_{number}", description=f"Run number {number}.")
    (_write(tree / "broken")).write_text("{")
    (tree / "not_a_file" / "speedrun_results.json").mkdir(parents=True)
    num_here, alone = _read(tree, tmp_path / "alone", 1_000)
    assert (num_here, len(alone)) == (11, 11)
    num_here, in_parts = _read(tree, tmp_path / "parts", 1)
    assert num_here < 11 and in_parts == alone
    kept = (tmp_path / "parts" / "rows.jsonl").read_bytes()
    assert kept == (tmp_path / "alone" / "rows.jsonl").read_bytes()
    num_here, again = _read(tree, tmp_path / "parts", 1_000)
    assert (num_here, again) == (2, alone)  # what could not be read is read again
    assert (tmp_path / "parts" / "rows.jsonl").read_bytes() == kept


def test_submission_that_is_changed_while_it_is_read_is_not_kept_as_what_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "tree" / "one", description="before")
    before, read_file = path.read_text(), results_tree.read_results_file

    def changed_first(place: pathlib.Path, *arguments: object) -> Iterator[Row | Unreadable]:
        place.write_text(before.replace("before", "beside"))
        return read_file(place, *arguments)  # type: ignore[arg-type]

    def descriptions() -> list[str]:
        store = RowStore(tmp_path / "cache")
        rows = read_results_tree(tmp_path / "tree", None, store)
        store.save()
        return [row.description for row in rows if isinstance(row, Row)]

    with monkeypatch.context() as changing:
        changing.setattr(results_tree, "read_results_file", changed_first)
        assert descriptions() == ["beside"]
    path.write_text(before)
    assert descriptions() == ["before"]


def test_directory_that_cannot_be_listed_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "one")
    (tmp_path / "two").mkdir()
    listed = results_tree.list_directory

    def refused(directory: str) -> list[object]:
        if directory.endswith("two"):
            raise PermissionError(13, "Permission denied", directory)
        return list(listed(directory))

    monkeypatch.setattr(results_tree, "list_directory", refused)
    row, problem = read_results_tree(tmp_path)
    assert isinstance(row, Row) and row.source == "one/speedrun_results.json"
    assert problem == Unreadable("two", "the directory cannot be listed (Permission denied): check its permissions")


def test_run_right_in_what_was_searched_is_named_by_its_directory_also_from_what_was_kept(
    tmp_path: pathlib.Path,
) -> None:
    _write(tmp_path / "one")
    for name, other in (("one", "two"), ("two", "three")):
        board = collect([tmp_path / name], cache=tmp_path / "cache")
        assert [row.run_name for row in board.rows] == [name]
        (tmp_path / name).rename(tmp_path / other)


def test_optimizer_of_a_run_is_the_class_that_its_log_names(tmp_path: pathlib.Path) -> None:
    fields = {"beta1": 0.9, "beta2": 0.9999, "epsilon": 1e-6, "weight_decay": 0.1}  # Adam has the same
    _write(tmp_path / "mine", train_config={"optimizer_config": fields})
    (tmp_path / "mine" / "metrics.jsonl").write_text("")
    for named, expected in [({}, "AdamW"), ({"optimizer_class": "marin.optim.adopt:AdoptConfig"}, "ADOPT")]:
        (tmp_path / "mine" / "run.json").write_text(json.dumps(named))
        (row,) = read_results_tree(tmp_path)
        assert isinstance(row, Row) and row.optimizer == expected
    (tmp_path / "mine" / "run.json").write_text("not JSON")
    (row,) = read_results_tree(tmp_path)
    assert isinstance(row, Row) and row.optimizer == "AdamW"


def test_rows_are_kept_by_all_of_the_program_that_decides_them() -> None:
    # Of what reading and verifying import, the rest finds files, starts processes, git among them, says what went wrong and when memory is looked through.
    other = ("children", "environment", "errors", "execution", "flags", "forks", "garbage", "git", "main_module", "parts", "resources", "storage")  # fmt: skip
    root = pathlib.Path(marin.__file__).parent
    code = "import sys, marin.speedrun.verification, marin.speedrun.board.leaderboard, marin.speedrun.statistics.scaling_fit\n"
    code += "print(*(m.__file__ for name, m in sys.modules.items() if name.startswith('marin.')), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {pathlib.Path(line) for line in done.stdout.splitlines()}
    missing = {path.relative_to(root) for path in loaded - set(row_store.program_files()) if path.name != "__init__.py"}
    assert root / "data" / "core_tasks.py" in loaded
    assert sorted(str(path) for path in missing if path.parts[0].removesuffix(".py") not in other) == []
