"""An import that was stopped anywhere goes on in the file that it was in, and ends as one left alone."""

import json
import os
import pathlib

import pytest

from marin.data import sources
from marin.data.sources import ImportConfig, import_documents
from marin.errors import DataError
from marin.storage import files, trees

NUM_ROWS = (5, 1, 9, 4)


def make_files(folder: pathlib.Path) -> None:
    """Four files; some rows have no text and are dropped."""
    folder.mkdir()
    for number, num_rows in enumerate(NUM_ROWS):
        rows = [
            {"text": "" if row % 4 == 2 else f"file {number} row {row} " + "x" * (7 * row)} for row in range(num_rows)
        ]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def config_of(tmp_path: pathlib.Path, output: str, shard_bytes: int = 60) -> ImportConfig:
    return ImportConfig([str(tmp_path / "in")], "s", shard_bytes=shard_bytes, output_path=str(tmp_path / output))


def stop_after(monkeypatch: pytest.MonkeyPatch, num_rows: int) -> None:
    """Lets the import read so many rows more."""
    read = sources._document
    left = [num_rows]

    def counted(*arguments):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return read(*arguments)

    monkeypatch.setattr(sources, "_document", counted)


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are opened from here on."""
    names: list[str] = []
    open_file = sources.opened_stamped

    def noted(path: str):
        names.append(os.path.basename(path))
        return open_file(path)

    monkeypatch.setattr(sources, "opened_stamped", noted)
    return names


@pytest.mark.parametrize("shard_bytes", [1, 60, 1000])
def test_import_stopped_at_any_row_ends_as_one_left_alone_and_reads_no_ended_file_twice(tmp_path, shard_bytes):
    make_files(tmp_path / "in")
    import_documents(config_of(tmp_path, "alone", shard_bytes))
    for stop in range(1, sum(NUM_ROWS), 3):
        output = tmp_path / f"stopped-{stop}"
        config = config_of(tmp_path, output.name, shard_bytes)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            stop_after(patched, stop)
            import_documents(config)
        noted = [note for path in sorted(output.glob("reading/*")) for note in json.loads(path.read_text())["ended"]]
        with pytest.MonkeyPatch.context() as patched:
            names = opened(patched)
            import_documents(config)
        assert names == [f"{number}.jsonl" for number in range(len(noted), len(NUM_ROWS))]
        if shard_bytes == 1:  # each document is a shard: of all files before the one where it was stopped none is read
            ends = [sum(NUM_ROWS[: number + 1]) for number in range(len(NUM_ROWS))]
            assert len(noted) >= sum(end < stop for end in ends)
        assert trees.first_difference(str(tmp_path / "alone"), str(output), leave_out=".executor") is None


@pytest.mark.parametrize("changed", [0, 2])
def test_import_reads_again_from_a_file_that_was_changed_since(tmp_path, monkeypatch, changed):
    make_files(tmp_path / "in")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(patched, 13)  # in the third file
        import_documents(config_of(tmp_path, "stopped", 1))
    (tmp_path / "in" / f"{changed}.jsonl").write_text('{"text": "another text"}\n' * 3)
    names = opened(monkeypatch)
    import_documents(config_of(tmp_path, "stopped", 1))
    assert names[0] == f"{changed}.jsonl" and len(names) == len(NUM_ROWS) - changed
    import_documents(config_of(tmp_path, "alone", 1))
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "stopped"), leave_out=".executor") is None


def test_import_with_a_file_before_the_others_and_shards_of_another_size_begins_again(tmp_path):
    make_files(tmp_path / "in")
    for output in ("more", "other"):
        with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
            stop_after(patched, 13)
            import_documents(config_of(tmp_path, output))
    import_documents(config_of(tmp_path, "other", shard_bytes=200))
    import_documents(config_of(tmp_path, "alone", shard_bytes=200))
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "other"), leave_out=".executor") is None
    (tmp_path / "in" / "-first.jsonl").write_text('{"text": "a"}\n')
    import_documents(config_of(tmp_path, "more"))
    import_documents(config_of(tmp_path, "afresh"))
    assert trees.first_difference(str(tmp_path / "afresh"), str(tmp_path / "more"), leave_out=".executor") is None


def test_import_goes_on_when_the_row_that_ended_it_is_mended(tmp_path, monkeypatch):
    make_files(tmp_path / "in")
    whole = (tmp_path / "in" / "3.jsonl").read_bytes()
    (tmp_path / "in" / "3.jsonl").write_bytes(whole + b"{no row\n")
    with pytest.raises(DataError, match="not_json"):
        import_documents(config_of(tmp_path, "mended"))
    (tmp_path / "in" / "3.jsonl").write_bytes(whole)
    names = opened(monkeypatch)
    import_documents(config_of(tmp_path, "mended"))
    assert names == ["2.jsonl", "3.jsonl"] or names == ["3.jsonl"]
    table = files.read_json(str(tmp_path / "mended" / "sources.json"))["files"]
    assert [row["documents"] + sum(row["dropped"].values()) for row in table] == list(NUM_ROWS)
