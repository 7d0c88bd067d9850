import gzip
import json
import os
import random

import fsspec
import pytest

from marin.data.documents import read_documents
from marin.data.hub import DownloadConfig, download_hf, download_hf_step
from marin.data.hub_files import PalomaConfig, c4_en_validation_step, download_paloma, paloma_step
from marin.errors import ConfigError, DataError
from marin.execution.step import inputs_of
from marin.storage import trees

REPO = "some-lab/tiny"
FILES = {
    "README.md": b"# tiny\n",
    "data/a b.jsonl": b'{"text": "one"}\n',
    "data/big.bin": random.Random(5).randbytes(700_000),
    ".gitattributes": b"*.bin filter=lfs\n",
}
RUN = """
import sys
from marin.data.hub import DownloadConfig, download_hf
download_hf(DownloadConfig(sys.argv[1], gcs_output_path=sys.argv[2]))
"""


def download(target, **options):
    download_hf(DownloadConfig(**{"hf_dataset_id": REPO, "gcs_output_path": str(target)} | options))


def content(target):
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.fixture
def commit(hub, online):
    return hub.commit(FILES)


def test_download_hf_gives_the_files_of_the_commit_and_notes_them(hub, commit, tmp_path):
    hub.faults = [None, ("drop", 3)]
    download(tmp_path)
    found = content(tmp_path)
    listing = json.loads(found.pop(".hub_listing.json"))
    assert found == FILES
    assert listing["commit"] == commit
    assert {entry["path"] for entry in listing["files"] if "sha256" in entry} == {"data/big.bin"}


def test_download_hf_by_pattern_fetches_only_what_matches(hub, commit, tmp_path):
    download(tmp_path / "out", revision=commit, hf_urls_glob=["data/*.jsonl"])
    assert hub.fetched == ["data/a b.jsonl"]
    with pytest.raises(
        DataError, match=r"no file that matches \*\.parquet: it has \.gitattributes, README\.md, data/a b"
    ):
        download(tmp_path / "other", hf_urls_glob=["*.parquet"])


def test_download_hf_killed_goes_on_at_the_same_commit_although_the_branch_moved(hub, commit, kill_python, tmp_path):
    download(tmp_path / "alone")
    hub.asked.clear()
    hub.stays_after = 400_000  # so that it cannot be through before the kill
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    part = tmp_path / "out" / "data" / ".big.bin.part"
    assert kill_python(
        [RUN, REPO, str(tmp_path / "out")],
        begun=lambda: part.exists() and part.stat().st_size > 100_000,
        after=0.05,
        environment=kept | {"HF_ENDPOINT": hub.url},
    )
    hub.commit({"README.md": b"# moved\n"})
    hub.stays_after = None
    hub.asked.clear()
    download(tmp_path / "out")
    (range_asked,) = [headers["Range"] for _, name, headers in hub.asked if name.endswith("big.bin")]
    assert range_asked > "bytes=1"
    assert trees.first_difference(str(tmp_path / "alone"), str(tmp_path / "out"), leave_out=".executor") is None


def test_download_hf_of_other_bytes_than_the_hub_states_is_refused(hub, commit, tmp_path):
    for path in hub.files:
        if path.endswith("big.bin"):
            hub.files[path] = hub.files[path][::-1]
    with pytest.raises(DataError, match="has SHA-256"):
        download(tmp_path, num_workers=1)
    assert "data/big.bin" not in content(tmp_path)


def test_download_hf_of_a_gated_repository_needs_the_token_and_sends_it(hub, commit, tmp_path, monkeypatch):
    hub.gated = True
    with pytest.raises(DataError, match="is gated: accept its terms on the hub, then set HF_TOKEN"):
        download(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "good")
    download(tmp_path)
    found = content(tmp_path)
    assert FILES.items() <= found.items()
    assert not any(b"good" in data for data in found.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hf_dataset_id": "some-lab/none"}, "not on the hub or is private"),
        ({"revision": "no-such-branch"}, "no such revision"),
        ({"hf_dataset_id": "a/b/c"}, "no repository's name"),
    ],
)
def test_download_hf_of_what_is_not_there_says_what_to_check(hub, commit, tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        download(tmp_path, **options)


@pytest.mark.parametrize("offline", [True, False])
def test_download_hf_without_network_takes_what_was_put_there_by_hand_and_says_so(
    online, tmp_path, monkeypatch, capsys, offline
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(DataError) as caught:
        download(tmp_path / "out", revision="abc", hf_urls_glob=["data/*"])
    assert f"hf download {REPO} --repo-type dataset --revision abc --include 'data/*' --local-dir DIR" in str(
        caught.value
    )
    assert f"copy DIR's content to {tmp_path / 'out'}" in str(caught.value)
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "data" / "x").write_text("x")
    download(tmp_path / "out", revision="abc", hf_urls_glob=["data/*"])
    assert "taken as they are, unchecked" in capsys.readouterr().out


def test_download_hf_offline_in_the_middle_says_what_is_missing(hub, commit, tmp_path, monkeypatch):
    from huggingface_hub import constants

    missing = {name: hub.files.pop(name) for name in list(hub.files) if name.endswith("big.bin")}
    with pytest.raises(DataError, match="404"):
        download(tmp_path)
    hub.files.update(missing)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        download(tmp_path)
    (tmp_path / "data" / "big.bin").write_bytes(FILES["data/big.bin"])
    (tmp_path / "README.md").write_bytes(FILES["README.md"])
    (tmp_path / ".gitattributes").write_bytes(FILES[".gitattributes"])
    (tmp_path / "data" / "a b.jsonl").write_bytes(FILES["data/a b.jsonl"])
    hub.asked.clear()
    download(tmp_path)
    assert hub.asked == []


def test_download_hf_into_a_store(hub, commit, tmp_path):
    download(f"memory://{tmp_path}")
    with fsspec.open(f"memory://{tmp_path}/data/big.bin") as stream:
        assert stream.read() == FILES["data/big.bin"]


def test_paloma_documents_are_those_of_the_gzipped_lines(hub, online, tmp_path):
    hub.repo = "allenai/paloma"
    rows = [{"id": "x1", "text": "one", "source": "c4"}, {"text": "two"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    commit = hub.commit({"c4_en/val/val.jsonl.gz": gzip.compress(lines), "other/val/val.jsonl.gz": b"x"})
    download_paloma(PalomaConfig("c4_en", commit, str(tmp_path)))
    assert [(d.id, d.text, d.source) for d in read_documents(str(tmp_path / "documents.jsonl.zst"))] == [
        ("x1", "one", "c4"),
        ("c4_en/val/val.jsonl.gz:2", "two", ""),
    ]
    assert hub.fetched == ["c4_en/val/val.jsonl.gz"]
    with pytest.raises(DataError, match="no file that matches nothing/val"):
        download_paloma(PalomaConfig("nothing", commit, str(tmp_path / "other")))


def test_prepared_steps_name_a_commit_and_where_their_files_come_from():
    step = c4_en_validation_step()
    (raw,) = [reference.step for reference in inputs_of(step.config)]
    assert raw.config.hf_dataset_id == "allenai/c4"
    assert len(raw.config.revision) == 40
    assert paloma_step("c4_en").name == "raw/paloma/c4_en"
    assert download_hf_step("x", "a/b", None).config == DownloadConfig("a/b", None, hf_urls_glob=[])


@pytest.mark.parametrize(
    ("field", "value"), [("wait_for_completion", False), ("hf_repo_type_prefix", "dataset"), ("hf_urls_glob", "*.gz")]
)
def test_download_config_with_an_unsupported_value_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        DownloadConfig("a/b", **{field: value})
