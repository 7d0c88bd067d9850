"""`scripts.dataset`: shards over HTTP with faults, the last one always, and nothing twice."""

import io
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.errors import ConfigError, DataError
from marin.execution.attempts import ledger_directory
from marin.gpt2.datasets import ValidationConfig, open_dataset, read_file_documents
from marin.gpt2.places import Places
from marin.storage.lease import Lease
from scripts import dataset


def _shard(number: int) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": [f"shard {number}, document {i}" for i in range(30)]}), stream, compression="zstd")
    return stream.getvalue()


def _fetch(monkeypatch, server, folder, *arguments: str) -> None:
    flags = ["--total=6", f"--url={server.url}", f"--base-dir={folder}", *arguments]
    monkeypatch.setattr(sys, "argv", ["dataset", *flags])
    dataset.main()


def test_shards_are_fetched_with_the_last_one_continued_after_faults_and_read(server, tmp_path, monkeypatch, capsys):
    for number in range(6):
        server.files[f"shard_{number:05d}.parquet"] = _shard(number)
    server.faults = [("drop", 200)]
    _fetch(monkeypatch, server, tmp_path, "-n", "2", "-w", "1")
    places = Places.of(str(tmp_path))
    names = ["shard_00000.parquet", "shard_00001.parquet", "shard_00005.parquet"]
    assert sorted(path.name for path in places.data.iterdir()) == names
    asked = len(server.asked)
    _fetch(monkeypatch, server, tmp_path, "-n", "2")
    assert len(server.asked) == asked and "3 of 3 shards" in capsys.readouterr().out
    _fetch(monkeypatch, server, tmp_path, "-n", "3")
    found = open_dataset(places, "climbmix")
    assert [file.name for file in found.train] == ["shard_00000.parquet", "shard_00001.parquet", "shard_00002.parquet"]
    assert found.validation.name == "shard_00005.parquet"
    assert next(read_file_documents(found.train[1].path, "text")).text == "shard 1, document 0"
    held_out = ValidationConfig(found.validation, num_tokens=20).read()  # until there are 80 bytes
    assert [document.text for document in held_out.documents] == [f"shard 5, document {i}" for i in range(5)]


def test_download_that_was_interrupted_has_the_shard_that_is_held_out(server, tmp_path, monkeypatch):
    for number in (0, 1, 5):  # what comes after them does not arrive
        server.files[f"shard_{number:05d}.parquet"] = _shard(number)
    with pytest.raises(DataError, match=r"shard_00002\.parquet"):
        _fetch(monkeypatch, server, tmp_path, "-n", "4", "-w", "1")
    found = open_dataset(Places.of(str(tmp_path)), "climbmix")
    assert [file.name for file in found.train] == ["shard_00000.parquet", "shard_00001.parquet"]
    assert found.validation.name == "shard_00005.parquet"


def test_second_download_waits_for_the_first_and_fetches_what_is_left(server, tmp_path, monkeypatch, capsys):
    for number in range(6):
        server.files[f"shard_{number:05d}.parquet"] = _shard(number)
    folder = Places.of(str(tmp_path)).data
    folder.mkdir()
    with Lease(ledger_directory(str(folder))).acquire():
        second = threading.Thread(target=_fetch, args=(monkeypatch, server, tmp_path, "-n", "1"))
        second.start()
        second.join(1.0)
        assert second.is_alive() and not server.asked
        (folder / "shard_00000.parquet").write_bytes(_shard(0))
    second.join(60.0)
    assert (folder / "shard_00005.parquet").read_bytes() == _shard(5) and "fetched 1 shards" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0"], "`--num-files` is 0: ask for at least one shard"),
        (["-n", "-5"], "`--num-files` is -5"),
        (["-n", "1", "--total", "1"], "`--total` is 1: use at least 2"),
        (["-n", "1", "-w", "0"], "`--num-workers` is 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_their_flag(server, tmp_path, monkeypatch, arguments, message):
    with pytest.raises(ConfigError, match=message):
        _fetch(monkeypatch, server, tmp_path, *arguments)
    assert not server.asked
