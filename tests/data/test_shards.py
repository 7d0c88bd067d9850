import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.data.documents import Document, Dropped, read_documents, write_documents
from marin.data.shards import DocumentSet, transform_shards, write_shards
from marin.errors import DataError
from marin.storage import files


def documents(count):
    return [Document(f"d{i}", f"text {i} é " * (i % 7 + 1), "s") for i in range(count)]


def source_of(path, count=60, shard_bytes=800):
    return write_shards(str(path), documents(count), stage="make", settings={}, shard_bytes=shard_bytes)


def drop_thirds(index, documents):
    for document in documents:
        if int(document.id[1:]) % 3 == 0:
            yield Dropped(document.id, "third", document.id)
        else:
            yield Document(document.id, document.text.upper(), document.source)


def tree(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


# --- writing and reading ------------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(count=st.integers(1, 40), shard_bytes=st.integers(100, 1000))
def test_write_shards_then_read_gives_the_documents_whatever_the_shard_size(tmp_path_factory, count, shard_bytes):
    path = str(tmp_path_factory.mktemp("set"))
    written = write_shards(path, documents(count), stage="make", settings={}, shard_bytes=shard_bytes)
    assert list(read_documents(path)) == documents(count)
    assert written.num_documents == count
    assert written.num_bytes == sum(len(document.text.encode()) for document in documents(count))
    for shard in written.shards[:-1]:
        assert shard.num_bytes >= shard_bytes
    assert DocumentSet.open(path) == written


def test_write_shards_records_what_was_dropped(tmp_path):
    rows = [Document("a", "x", "s"), Dropped("line 2", "bad row", "not JSON"), Document("b", "y", "s")]
    write_shards(str(tmp_path), rows, stage="import", settings={"paths": ["p"]})
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["documents"] == {"in": 3, "kept": 2, "changed": 0, "dropped": 1}
    assert report["dropped"] == {"bad row": {"documents": 1, "examples": ["line 2"]}}
    assert report["settings"] == {"paths": ["p"]}


def test_write_shards_without_documents_is_refused(tmp_path):
    with pytest.raises(DataError, match="no documents"):
        write_shards(str(tmp_path), [], stage="import", settings={})


def test_write_shards_over_a_longer_set_leaves_nothing_of_it(tmp_path):
    source_of(tmp_path / "a", 60)
    source_of(tmp_path / "a", 10)
    source_of(tmp_path / "b", 10)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_set_written_where_a_writer_was_killed_has_nothing_of_it(tmp_path):
    source = source_of(tmp_path / "source")
    transform_shards(source, str(tmp_path / "alone"), drop_thirds, stage="drop", settings={}, num_workers=1)
    transform_shards(source, str(tmp_path / "killed"), drop_thirds, stage="drop", settings={}, num_workers=1)
    (tmp_path / "killed" / "manifest.json").unlink()
    (tmp_path / "killed" / files.temporary_name("manifest.json")).write_text('{"format"')
    (tmp_path / "killed" / ".executor_info").write_text("another's, which stays")
    transform_shards(source, str(tmp_path / "killed"), drop_thirds, stage="drop", settings={}, num_workers=1)
    (tmp_path / "killed" / ".executor_info").unlink()
    assert tree(tmp_path / "killed") == tree(tmp_path / "alone")


def test_document_set_on_a_store_is_written_and_read(tmp_path):
    written = write_shards("memory://shards/set", documents(20), stage="make", settings={}, shard_bytes=200)
    result = transform_shards(written, "memory://shards/out", drop_thirds, stage="drop", settings={}, num_workers=1)
    local = transform_shards(
        source_of(tmp_path / "in", 20, 200),
        str(tmp_path / "out"),
        drop_thirds,
        stage="drop",
        settings={},
        num_workers=1,
    )
    assert result.digest == local.digest
    assert [document.id for document in read_documents("memory://shards/out")] == [
        document.id for document in documents(20) if int(document.id[1:]) % 3
    ]


def test_document_set_of_one_file_is_a_set_of_one_shard(tmp_path):
    path = str(tmp_path / "some.jsonl.zst")
    write_documents(path, documents(5))
    opened = DocumentSet.open(path)
    assert [shard.name for shard in opened.shards] == ["some"]
    assert opened.num_documents == 5
    assert list(opened.documents()) == documents(5)


def test_document_set_without_manifest_is_unfinished(tmp_path):
    source_of(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no finished document set.*run the step"):
        DocumentSet.open(str(tmp_path))
    with pytest.raises(DataError, match="no finished document set"):
        list(read_documents(str(tmp_path)))


def test_document_set_with_a_replaced_shard_is_refused(tmp_path):
    written = source_of(tmp_path)
    write_documents(written.shards[1].path, documents(1))
    with pytest.raises(DataError, match=r"shard-00001.*digest"):
        list(written.documents())


def test_document_set_with_a_missing_shard_is_refused(tmp_path):
    written = source_of(tmp_path)
    os.unlink(written.shards[1].path)
    with pytest.raises(DataError, match=r"shard-00001.*cannot be opened"):
        list(written.documents())


def test_document_set_whose_manifest_is_of_another_format_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text('{"format": "else"}')
    with pytest.raises(DataError, match="`format` is 'else'"):
        DocumentSet.open(str(tmp_path))


def test_document_set_of_which_all_is_dropped_says_where_to_look(tmp_path):
    def drop_all(index, documents):
        return (Dropped(document.id, "all") for document in documents)

    empty = transform_shards(
        source_of(tmp_path / "in"), str(tmp_path / "out"), drop_all, stage="x", settings={}, num_workers=1
    )
    assert empty.num_documents == 0
    with pytest.raises(DataError, match=r"holds no documents.*report\.json"):
        list(read_documents(str(tmp_path / "out")))


# --- transforming -------------------------------------------------------------------------------------------------


def test_transform_shards_keeps_order_and_counts_everything(tmp_path):
    source = source_of(tmp_path / "in")
    result = transform_shards(source, str(tmp_path / "out"), drop_thirds, stage="drop", settings={}, num_workers=1)
    kept = [document for document in documents(60) if int(document.id[1:]) % 3]
    assert [document.id for document in result.documents()] == [document.id for document in kept]
    assert [document.text for document in result.documents()] == [document.text.upper() for document in kept]
    assert [(a.name, b.name) for a, b in zip(source.shards, result.shards, strict=True)]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["documents"] == {"in": 60, "kept": 40, "changed": 40, "dropped": 20}
    assert report["dropped"]["third"]["documents"] == 20
    assert report["dropped"]["third"]["examples"] == [f"d{3 * i}" for i in range(10)]


def test_transform_shards_gives_the_same_bytes_for_any_number_of_workers(tmp_path):
    source = source_of(tmp_path / "in")
    for workers in (1, 2):
        transform_shards(
            source, str(tmp_path / str(workers)), drop_thirds, stage="drop", settings={}, num_workers=workers
        )
    assert tree(tmp_path / "1") == tree(tmp_path / "2")


def test_transform_shards_takes_finished_shards_as_they_are(tmp_path):
    source = source_of(tmp_path / "in")
    transform_shards(source, str(tmp_path / "out"), drop_thirds, stage="drop", settings={}, num_workers=1)
    before = tree(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "shards" / "shard-00001.json").unlink()
    (tmp_path / "out" / "documents" / ".shard-00003.jsonl.zst.77.tmp").write_bytes(b"killed here")
    damaged = tmp_path / "out" / "documents" / "shard-00002.jsonl.zst"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = []

    def noting(index, documents):
        done.append(index)
        return drop_thirds(index, documents)

    transform_shards(source, str(tmp_path / "out"), noting, stage="drop", settings={}, num_workers=1)
    assert done == [1, 2]
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["input", "settings", "fewer"])
def test_transform_shards_does_shards_of_another_input_or_setting_again(tmp_path, change):
    out = tmp_path / "out"
    transform_shards(source_of(tmp_path / "in"), str(out), drop_thirds, stage="drop", settings={}, num_workers=1)
    source = source_of(tmp_path / "other", *((60, 400) if change == "input" else (20,) if change == "fewer" else ()))
    changed = {"new": 1} if change == "settings" else {}
    transform_shards(source, str(out), drop_thirds, stage="drop", settings=changed, num_workers=1)
    transform_shards(source, str(tmp_path / "fresh"), drop_thirds, stage="drop", settings=changed, num_workers=1)
    assert tree(out) == tree(tmp_path / "fresh")


def silently_dropping(index, documents):
    return (document for document in documents if document.id != "d7")


def stopping(index, documents):
    return (next(documents) for _ in range(1))


def doubling(index, documents):
    return (output for document in documents for output in (document, document))


@pytest.mark.parametrize(
    ("transform", "message"),
    [(silently_dropping, "'d8', expected 'd7'"), (stopping, "nothing for document"), (doubling, "expected no more")],
)
def test_transform_shards_refuses_a_transform_that_loses_or_adds_documents(tmp_path, transform, message):
    with pytest.raises(DataError, match=message):
        transform_shards(
            source_of(tmp_path / "in"), str(tmp_path / "out"), transform, stage="x", settings={}, num_workers=1
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_transform_shards_names_shard_and_document_of_an_error(tmp_path, workers):
    def failing(index, documents):
        for document in documents:
            if document.id == "d33":
                raise KeyError("oh")
            yield document

    source = source_of(tmp_path / "in")
    with pytest.raises(DataError, match=r"mine: .*shard-000\d\d\.jsonl\.zst, near document 'd33': KeyError: 'oh'"):
        transform_shards(source, str(tmp_path / "out"), failing, stage="mine", settings={}, num_workers=workers)
    assert not (tmp_path / "out" / "manifest.json").exists()


# --- kills --------------------------------------------------------------------------------------------------------


STAYS_IN = "STAYS_IN"  # the variable that names the shard in which a stage stays until it is killed


def slow(index, documents):
    for document in documents:
        time.sleep(0.002)
        yield document
        while str(index) == os.environ.get(STAYS_IN):
            time.sleep(0.1)


def run_slowly(source, out, num_workers):
    transform_shards(str(source), str(out), slow, stage="slow", settings={}, num_workers=num_workers)


def run_and_kill(source, out, seconds_after_first_shard, stays_in=""):
    """Whether the kill came before the end, and its workers at that time."""
    command = [sys.executable, __file__, str(source), str(out)]
    child = subprocess.Popen(command, start_new_session=True, env=os.environ | {STAYS_IN: str(stays_in)})
    records = out / "shards"
    while child.poll() is None and not (records.is_dir() and any(records.glob("*.json"))):
        time.sleep(0.01)
    time.sleep(seconds_after_first_shard)
    workers = [] if child.poll() is not None else psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    return child.wait() == -signal.SIGKILL, workers


def lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_transform_shards_killed_and_run_again_gives_the_same_bytes(tmp_path):
    last = len(source_of(tmp_path / "in", 400, 1000).shards) - 1
    out = tmp_path / "out"
    killed, workers = run_and_kill(tmp_path / "in", out, 0.05, stays_in=last)
    assert killed and workers
    assert not (out / "manifest.json").exists()
    deadline = time.monotonic() + 60
    while any(map(lives, workers)):
        assert time.monotonic() < deadline, "a worker went on after its parent was killed"
        time.sleep(0.01)
    finished = {file: file.stat().st_mtime_ns for file in (out / "shards").glob("shard-*.json")}
    run_slowly(tmp_path / "in", out, 1)
    assert finished
    assert all(file.stat().st_mtime_ns == time_ns for file, time_ns in finished.items())
    run_slowly(tmp_path / "in", tmp_path / "fresh", 1)
    assert tree(out) == tree(tmp_path / "fresh")


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_transform_shards_killed_twenty_times_gives_the_same_bytes(tmp_path):
    source_of(tmp_path / "in", 1500, 500)
    run_slowly(tmp_path / "in", tmp_path / "fresh", 1)
    num_kills = 0
    for attempt in range(20):
        num_kills += run_and_kill(tmp_path / "in", tmp_path / "out", 0.01 * attempt)[0]
    assert num_kills >= 5
    run_slowly(tmp_path / "in", tmp_path / "out", 1)
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")


if __name__ == "__main__":
    run_slowly(sys.argv[1], sys.argv[2], 2)
