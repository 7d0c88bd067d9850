"""Which files a source consists of: folders, patterns and links, what is left out, and what names nothing."""

import errno
import os

import pytest

from marin.data.documents import Document
from marin.data.inputs import find_inputs
from marin.data.sources import ImportConfig, import_documents
from marin.errors import DataError
from marin.storage import files

from .source_files import LINES, imported, write


def test_import_of_a_folder_takes_known_files_by_name_and_says_what_it_leaves_out(tmp_path, capsys):
    write(tmp_path / "c" / "b.jsonl", LINES)
    write(tmp_path / "c" / "a" / "z.txt", b"z")
    write(tmp_path / "c" / ".hidden" / "x.txt", b"x")
    write(tmp_path / "c" / ".executor_info.json", b"{}")
    write(tmp_path / "c" / "picture.png", b"x")
    config = ImportConfig([str(tmp_path / "c")], "c", output_path=str(tmp_path / "out"))
    assert [document.id for document in import_documents(config).documents()] == [
        "a/z.txt",
        "d0",
        "d1",
        "d2",
        "d3",
        "d4",
    ]
    assert "picture.png" in capsys.readouterr().out
    table = files.read_json(str(tmp_path / "out" / "sources.json"))
    assert [(row["file"], row["documents"]) for row in table["files"]] == [("a/z.txt", 1), ("b.jsonl", 5)]
    assert table["left_out"] == ["picture.png"]
    assert len(imported([tmp_path / "c"])) == 6  # where nothing is written it is said too
    assert "picture.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "x/b.txt", "x/y/c.txt"]),
        ("x/*.txt", ["b.txt"]),
        ("x/?/c.*", ["y/c.txt"]),
        ("[ab].txt", ["a.txt"]),
        ("x", ["b.txt", "y/c.txt"]),
        ("x/b.txt", ["b.txt"]),
    ],
)
def test_import_of_a_pattern_names_files_from_where_it_begins(tmp_path, pattern, names):
    for name in ("a.txt", "x/b.txt", "x/y/c.txt"):
        write(tmp_path / name, b"text")
    assert [file.name for file in find_inputs([f"{tmp_path}/{pattern}"]).files] == names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("corpus", ["linked/a.txt", "linked/below/b.txt", "one.txt"]),
        ("corpus/*/*.txt", ["linked/a.txt"]),
        ("corpus/**/*.txt", ["linked/a.txt", "linked/below/b.txt", "one.txt"]),
        ("corpus/*.txt", ["one.txt"]),
    ],
)
def test_import_of_a_folder_of_links_reads_what_they_lead_to_and_no_circle(tmp_path, pattern, names):
    write(tmp_path / "elsewhere" / "a.txt", b"text")
    write(tmp_path / "elsewhere" / "below" / "b.txt", b"text")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "one", b"text")
    (tmp_path / "corpus" / "one.txt").symlink_to(tmp_path / "one")
    (tmp_path / "elsewhere" / "below" / "circle").symlink_to(tmp_path / "corpus")
    found = find_inputs([f"{tmp_path}/{pattern}"])
    assert [file.name for file in found.files] == names
    assert not found.unknown
    (tmp_path / "corpus" / "broken.txt").symlink_to(tmp_path / "corpus" / "broken.txt")
    if pattern == "corpus":
        with pytest.raises(DataError, match=r"broken\.txt cannot be looked up"):
            imported([tmp_path / "corpus"])


@pytest.mark.parametrize("asked", ["corpus", "corpus/**/*.txt"])
def test_import_of_a_file_that_two_names_lead_to_reads_it_once_and_says_so(tmp_path, capsys, monkeypatch, asked):
    write(tmp_path / "place" / "corpus" / "b" / "x.txt", b"x")
    write(tmp_path / "place" / "corpus" / "b" / "y.txt", b"y")
    (tmp_path / "place" / "corpus" / "a").symlink_to("b")  # before it by name
    (tmp_path / "place" / "corpus" / "z.txt").symlink_to("b/y.txt")
    (tmp_path / "work").symlink_to("place")  # ids do not depend on where a corpus lies
    monkeypatch.chdir(tmp_path / "work")
    assert [document.id for document in imported([asked])] == ["b/x.txt", "b/y.txt"]
    assert (
        "left out as another name of a file that is read: 3 files (a/x.txt, a/y.txt, z.txt)" in capsys.readouterr().out
    )


@pytest.mark.parametrize("asked", ["disk", "disk/**/*.txt"])
def test_import_of_a_disk_passes_over_what_is_the_systems_and_names_any_other_folder_that_cannot_be_listed(
    tmp_path, monkeypatch, asked
):
    write(tmp_path / "disk" / "a.txt", b"text")
    (tmp_path / "disk" / "lost+found").mkdir()
    scandir = os.scandir

    def as_no_root(folder):
        if str(folder).endswith(("lost+found", "secret")):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", as_no_root)
    assert [file.name for file in find_inputs([f"{tmp_path}/{asked}"]).files] == ["a.txt"]
    (tmp_path / "disk" / "secret").mkdir()
    with pytest.raises(DataError, match=r"disk/secret cannot be listed \(Permission denied\)"):
        find_inputs([f"{tmp_path}/{asked}"])


def test_import_of_two_files_that_would_have_one_name_is_refused(tmp_path):
    for folder in "ab":
        write(tmp_path / folder / "x.txt", b"text")
    with pytest.raises(DataError, match=r"both be called 'x\.txt'"):
        find_inputs([str(tmp_path / "a"), str(tmp_path / "b")])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["/no/such/place"], "is no file and no folder"),
        (["memory://no/such/place"], "^memory://no/such/place is no file and no folder"),
        (["nosuchstore://x/a.txt"], "no known store"),
        (["{tmp}/x.pdf"], "no file of a known format .found: x.pdf.: use .txt"),
        (["{tmp}/*.csv"], r"\*\.csv names no file, as a pattern"),
        (["{tmp}/a.txt", "{tmp}/tpyo/*.txt"], r"tpyo/\*\.txt names no file"),
        (["{tmp}/a.txt", "{tmp}/empty"], "/empty names no file"),
    ],
)
def test_import_of_paths_that_name_nothing_says_what_was_looked_for(tmp_path, paths, message):
    write(tmp_path / "x.pdf", b"x")
    write(tmp_path / "a.txt", b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        imported([path.format(tmp=tmp_path) for path in paths])


def test_import_of_a_document_set_says_to_use_it_as_it_is(tmp_path):
    config = ImportConfig([str(write(tmp_path / "a.txt", b"text"))], "h", output_path=str(tmp_path / "set"))
    import_documents(config)
    with pytest.raises(DataError, match="is a document set already"):
        imported([tmp_path / "set"])
    assert imported([tmp_path / "set" / "documents"]) == [Document("a.txt", "text", "h")]
