import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from marin.data.documents import Document, read_documents, write_documents
from marin.errors import DataError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
DOCUMENTS = st.lists(st.builds(Document, id=TEXT, text=TEXT, source=TEXT), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("documents") / "some.jsonl.zst")


@given(DOCUMENTS)
def test_documents_written_and_read_are_the_same(path, documents):
    write_documents(path, documents)
    assert list(read_documents(path)) == documents


def test_documents_written_twice_give_the_same_bytes(tmp_path):
    documents = [Document(str(i), "text " * i, "here") for i in range(2000)]
    write_documents(str(tmp_path / "a.jsonl.zst"), documents)
    write_documents(str(tmp_path / "b.jsonl.zst"), iter(documents))
    assert (tmp_path / "a.jsonl.zst").read_bytes() == (tmp_path / "b.jsonl.zst").read_bytes()


def test_documents_of_several_frames_are_read_as_one_file(tmp_path):
    write_documents(str(tmp_path / "a"), [Document("1", "one", "s")])
    write_documents(str(tmp_path / "b"), [Document("2", "two", "s")])
    (tmp_path / "ab").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    assert [document.id for document in read_documents(str(tmp_path / "ab"))] == ["1", "2"]


def test_writing_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "some.jsonl.zst"
    write_documents(str(path), [Document("1", "old", "s")])

    def failing():
        yield Document("1", "new", "s")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_documents(str(path), failing())
    assert [document.text for document in read_documents(str(path))] == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_documents_with_a_lone_surrogate_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="'bad'"):
        write_documents(str(tmp_path / "a"), [Document("bad", "\ud800", "s")])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{not json", "is not JSON"),
        (b"[1]", "holds a list"),
        (b"", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"id": "1", "source": "s"}', "field `text` is absent"),
        (b'{"id": "1", "text": 3, "source": "s"}', "field `text` is a int"),
        (b'{"id": "1", "text": "\\ud83d", "source": "s"}', "lone surrogate"),
        (b'{"id": "1", "text": "\xff", "source": "s"}', "not UTF-8"),
    ],
)
def test_documents_with_a_bad_line_are_refused_with_file_and_line(tmp_path, line, expected):
    good = json.dumps({"id": "1", "text": "t", "source": "s"}).encode()
    path = tmp_path / "bad.jsonl.zst"
    path.write_bytes(zstandard.compress(good + b"\n" + good + b"\n" + line + b"\n" + good + b"\n"))
    with pytest.raises(DataError, match=expected) as caught:
        list(read_documents(str(path)))
    assert str(caught.value).startswith(f"{path}:3")


@pytest.mark.parametrize("kept", [0, 1, 10, 0.5, -4, -1])
def test_documents_cut_short_are_refused(tmp_path, kept):
    path = tmp_path / "cut.jsonl.zst"
    write_documents(str(path), [Document(str(i), f"{i * i} text", "s") for i in range(5000)])
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(DataError, match=r"cut short|holds no documents"):
        list(read_documents(str(path)))


def test_documents_with_a_flipped_bit_are_refused(tmp_path):
    path = tmp_path / "flipped.jsonl.zst"
    write_documents(str(path), [Document(str(i), f"{i * i} text", "s") for i in range(500)])
    data = bytearray(path.read_bytes())
    for position in range(0, len(data), len(data) // 20):
        damaged = data.copy()
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"flipped\.jsonl\.zst"):
            list(read_documents(str(path)))


def test_documents_of_an_absent_file_say_to_make_it_first(tmp_path):
    with pytest.raises(DataError, match="run the step"):
        list(read_documents(str(tmp_path / "absent.jsonl.zst")))


def test_documents_cut_between_frames_without_a_newline_are_refused(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"id": "1", "text": "t", "source": "s"}'))
    with pytest.raises(DataError, match="no newline"):
        list(read_documents(str(path)))
