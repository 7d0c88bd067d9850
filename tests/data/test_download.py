import hashlib
import itertools
import json
import os
import random

import fsspec
import pytest

from marin.data.download import DownloadFilesConfig, download_files, download_step, fetch_all
from marin.data.fetch import RemoteFile
from marin.errors import ConfigError, DataError
from marin.execution.step import placement
from marin.storage import trees

CONTENTS = {f"part-{i}.bin": random.Random(i).randbytes(400_000 + 100_000 * i) for i in range(4)}
DOWNLOAD = """
import json, sys
from marin.data.download import DownloadFilesConfig, download_files
download_files(DownloadFilesConfig(**json.loads(sys.argv[1])))
"""


@pytest.fixture
def served(server):
    server.files.update(CONTENTS)
    return server


def config(server, output, digests=None, **options):
    urls = [f"{server.url}/{name}" for name in CONTENTS]
    if digests is None:
        digests = {f"{server.url}/{name}": hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    return DownloadFilesConfig(urls, digests, output_path=str(output), **options)


def test_download_writes_the_files_and_a_record_that_does_not_depend_on_workers(served, tmp_path):
    served.faults = [503, ("drop", 100_000)]
    download_files(config(served, tmp_path / "a", num_workers=4))
    download_files(config(served, tmp_path / "b", num_workers=1))
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").glob("part-*")} == CONTENTS
    assert trees.first_difference(str(tmp_path / "a"), str(tmp_path / "b"), leave_out=".executor") is None
    record = json.loads((tmp_path / "a" / ".fetched.json").read_text())
    assert [entry["sha256"] for entry in record] == [hashlib.sha256(c).hexdigest() for c in CONTENTS.values()]


def test_download_without_digests_prints_them_to_be_named(served, tmp_path, capsys):
    download_files(config(served, tmp_path, {}))
    printed = capsys.readouterr().out
    assert all(hashlib.sha256(content).hexdigest() in printed for content in CONTENTS.values())


def test_download_of_which_one_file_fails_names_it_and_keeps_the_others(served, tmp_path):
    missing = served.files.pop("part-2.bin")
    with pytest.raises(DataError, match="part-2.bin"):
        download_files(config(served, tmp_path, num_workers=1))
    assert not (tmp_path / ".fetched.json").exists()
    served.files["part-2.bin"] = missing
    served.asked.clear()
    download_files(config(served, tmp_path, num_workers=1))
    assert [name for _, name, _ in served.asked] == ["part-2.bin", "part-3.bin"]


def test_download_into_a_store_puts_the_files_there_and_does_not_fetch_them_twice(served, tmp_path):
    target = f"memory://{tmp_path}/d"
    download_files(config(served, target))
    asked = len(served.asked)
    download_files(config(served, target))
    assert len(served.asked) == asked == len(CONTENTS)
    with fsspec.open(f"{target}/part-3.bin", "rb") as stream:
        assert stream.read() == CONTENTS["part-3.bin"]


@pytest.fixture
def kill_once(served, kill_python):
    """Starts a download and kills it `after` seconds behind its first request."""

    def run(output, after, digests=None, *, begun=lambda: True):
        chosen = config(served, output, digests)
        arguments = {"urls": chosen.urls, "digests": chosen.digests, "output_path": str(output)}
        asked = len(served.asked)
        return kill_python(
            [DOWNLOAD, json.dumps(arguments)], begun=lambda: len(served.asked) > asked and begun(), after=after
        )

    return run


@pytest.mark.parametrize("digests", [None, {}], ids=["digests", "no digests"])
def test_download_killed_and_repeated_goes_on_inside_the_files_and_ends_as_one_left_alone(
    served, kill_once, tmp_path, digests
):
    download_files(config(served, tmp_path / "alone", digests))
    served.stays_after = 200_000  # so that it cannot be through before the kill

    def arrived():
        return sum(path.stat().st_size for path in (tmp_path / "killed").glob(".*.part"))

    assert kill_once(tmp_path / "killed", 0.1, digests, begun=lambda: arrived() > 0)
    (tmp_path / "killed" / ".fetched.json.123.0123456789abcdef.tmp").write_text("[")  # killed while writing the record
    served.stays_after = None
    served.asked.clear()
    download_files(config(served, tmp_path / "killed", digests))
    assert any(headers.get("Range") for _, _, headers in served.asked)
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "killed"), leave_out=".executor") is None


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_download_killed_thirty_times_ends_as_one_left_alone(served, kill_once, tmp_path):
    download_files(config(served, tmp_path / "alone"))
    served.seconds_a_block = 0.002
    chance, kills, attempts = random.Random(int(os.environ.get("MARIN_KILL_SEED", "0"))), 0, itertools.count()
    while kills < 30:  # on a quick machine many attempts are through before their kill
        output = tmp_path / f"killed-{next(attempts) // 6}"
        served.faults = [chance.choice([None, 503, ("drop", chance.randrange(500_000))]) for _ in range(3)]
        kills += kill_once(output, chance.uniform(0.0, 0.4))
    served.faults, served.seconds_a_block = [], 0.0
    for output in tmp_path.glob("killed-*"):
        download_files(config(served, output))
        assert trees.first_difference(str(tmp_path / "alone"), str(output), leave_out=".executor") is None


def test_download_of_a_name_that_leads_out_of_the_directory_is_refused(served, tmp_path):
    with pytest.raises(DataError, match="leads out of"):
        fetch_all([RemoteFile(f"{served.url}/part-0.bin", "../part-0.bin")], str(tmp_path / "d"))
    assert not (tmp_path / "part-0.bin").exists()


@pytest.mark.parametrize(
    ("urls", "digests", "message"),
    [
        ([], {}, "`urls` is empty"),
        (["s3://bucket/a.txt"], {}, "use http or https"),
        (["https://user:secret@host/a.txt"], {}, "names a user or password for host"),
        (["https://host/"], {}, "no file name"),
        (["https://[host/a.txt"], {}, "no address"),
        (["https://host/" + "a" * 250], {}, "last part has 250 bytes"),
        (["https://host/a.txt", "https://other/a.txt"], {}, "two files 'a.txt'"),
        (["https://host/a.txt"], {"https://host/b.txt": "0" * 64}, "not among `urls`"),
        (["https://host/a.txt"], {"https://host/a.txt": "abc"}, "expected a SHA-256"),
    ],
)
def test_download_step_with_a_wrong_list_is_refused_where_it_is_made(urls, digests, message):
    with pytest.raises(ConfigError, match=message) as caught:
        download_step("some", urls, digests)
    assert "secret" not in str(caught.value)


def test_download_step_takes_one_address_as_import_step_does():
    one, listed = download_step("some", "https://host/a.txt"), download_step("some", ["https://host/a.txt"])
    assert one.config == listed.config
    with pytest.raises(ConfigError, match=r"give a list of addresses, \['https://host/a.txt'\]"):
        DownloadFilesConfig("https://host/a.txt")


def test_download_step_is_the_same_whatever_the_number_of_workers():
    fields = {field.name: field.metadata for field in DownloadFilesConfig.__dataclass_fields__.values()}
    assert fields["num_workers"] == placement(default=1).metadata
