"""What a data set is known by."""

import os
import shutil

from marin.gpt2.datasets import _END_BYTES, open_dataset
from marin.gpt2.places import Places


def _files(folder, places):
    dataset = open_dataset(places, str(folder))
    return [(file.name, file.num_bytes, file.digest) for file in (*dataset.train, dataset.validation)]


def test_a_file_that_was_changed_is_another_one_and_a_copy_is_not(tmp_path):
    places = Places.of(str(tmp_path / "base"))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("one" * _END_BYTES)
    (folder / "b.txt").write_text("two")
    known = _files(folder, places)
    shutil.copytree(folder, tmp_path / "copy" / "texts")
    for name in ("a.txt", "b.txt"):
        os.utime(tmp_path / "copy" / "texts" / name, (1, 1))
    assert _files(tmp_path / "copy" / "texts", places) == known
    for name, place in (("a.txt", 0), ("a.txt", 3 * _END_BYTES - 1), ("b.txt", 2)):
        with (folder / name).open("r+b") as stream:
            stream.seek(place)
            stream.write(b"X")
        changed = _files(folder, places)
        assert [file[:2] for file in changed] == [file[:2] for file in known] and changed != known
        known = changed


def test_files_of_no_known_format_are_named(tmp_path, capsys):
    for name in ("a.txt", "b.txt", "more.csv"):
        (tmp_path / name).write_text("text")
    _files(tmp_path, Places.of(str(tmp_path / "base")))
    assert "left out as of no known format: 1 file (more.csv)" in capsys.readouterr().out
