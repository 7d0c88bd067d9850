"""Importing as a step of a graph, and killed and repeated."""

import gzip
import json
import os
import pathlib
import random

import pytest

from marin.data.sources import ImportConfig, import_documents, import_step
from marin.execution import Executor, ExecutorMainConfig
from marin.storage import files, trees

IMPORT = """
import sys, time
from marin.data import sources
from marin.data.sources import ImportConfig, import_documents

def stay_before(number, outputs):
    for index, output in enumerate(outputs):
        time.sleep(600 * (index == number))
        yield output

if len(sys.argv) > 3:
    plain = sources._all_outputs
    sources._all_outputs = lambda *given: stay_before(int(sys.argv[3]), plain(*given))
import_documents(ImportConfig([sys.argv[1]], "big", output_path=sys.argv[2]))
"""


def test_import_step_in_a_graph_reads_what_another_step_wrote(tmp_path):
    (tmp_path / "in").mkdir()
    lines = "".join(json.dumps({"text": f"text {number}"}) + "\n" for number in range(5))
    (tmp_path / "in" / "a.jsonl").write_text(lines)
    first = import_step("first", [str(tmp_path / "in")])
    second = import_step("second", first / "documents")
    Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"))).run([second])
    (found,) = (tmp_path / "store" / "documents").glob("second-*")
    assert files.read_json(str(found / "report.json"))["documents"]["kept"] == 5


def make_folder(folder: pathlib.Path, num_files: int, num_rows: int) -> str:
    chance = random.Random(3)
    folder.mkdir()
    for number in range(num_files):
        rows = ({"text": chance.randbytes(600).hex()} for _ in range(num_rows))
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(content, 1, mtime=0))
    return str(folder)


@pytest.fixture
def kill_import(kill_python):
    """Starts an import and kills it `after` seconds behind its first file; it stays before a document if one is given."""

    def run(folder, output, after, *document):
        return kill_python([IMPORT, folder, output, *document], begun=lambda: os.path.isdir(output), after=after)

    return run


def test_import_killed_and_repeated_ends_as_one_left_alone(kill_import, tmp_path):
    folder = make_folder(tmp_path / "in", 3, 4000)
    assert kill_import(folder, str(tmp_path / "killed"), 0.15, "6000")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    import_documents(ImportConfig([folder], "big", output_path=str(tmp_path / "killed")))
    import_documents(ImportConfig([folder], "big", output_path=str(tmp_path / "alone")))
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "killed"), leave_out=".executor") is None


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_import_killed_thirty_times_ends_as_one_left_alone(kill_import, tmp_path):
    folder = make_folder(tmp_path / "in", 6, 15000)
    import_documents(ImportConfig([folder], "big", output_path=str(tmp_path / "alone")))
    chance, kills = random.Random(int(os.environ.get("MARIN_KILL_SEED", "0"))), 0
    for _ in range(40):
        kills += kill_import(folder, str(tmp_path / "killed"), chance.uniform(0.0, 1.5))
    import_documents(ImportConfig([folder], "big", output_path=str(tmp_path / "killed")))
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "killed"), leave_out=".executor") is None
    assert kills >= 30, kills
