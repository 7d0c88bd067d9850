"""Models of the hub: fetched once, kept, shared by processes, and put there by hand where there is no network."""

import pwd
import threading

import pytest

from marin.data.hub_models import hub_model_folder, is_hub_name
from marin.errors import ConfigError, DataError

REPO = "some-lab/tiny-llama"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": bytes(3000),
    "model-00002-of-00002.safetensors": bytes(range(256)) * 8,
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"# tiny",
    "pytorch_model.bin": b"pickled",
    "original/consolidated.00.pth": b"pickled",
}
WANTED = {name for name in FILES if name.endswith((".json", ".safetensors"))}


@pytest.fixture
def hub_repository():
    return REPO, "model"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MARIN_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_hub_model_is_fetched_once_without_pickles_and_kept(hub, online, cache, capsys):
    commit = hub.commit(FILES)
    folder = hub_model_folder(REPO)
    assert folder == cache / "some-lab--tiny-llama" / "main"
    assert _content(folder) == {name: FILES[name] for name in WANTED}
    assert f"{REPO} is commit {commit}" in capsys.readouterr().out
    hub.asked.clear()
    hub.commit(FILES | {"config.json": b"{}"})
    assert _content(hub_model_folder(REPO))["config.json"] == FILES["config.json"]
    assert hub.asked == []


def test_hub_model_for_a_user_without_a_home_directory_says_what_to_set(monkeypatch):
    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "MARIN_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match="set MARIN_HUB_CACHE"):
        hub_model_folder(REPO)


def test_hub_model_of_a_revision_lies_beside_the_newest(hub, online, cache):
    first = hub.commit(FILES)
    hub.commit(FILES | {"config.json": b"{}"})
    assert _content(hub_model_folder(f"{REPO}@{first}"))["config.json"] == FILES["config.json"]
    assert _content(hub_model_folder(REPO))["config.json"] == b"{}"
    with pytest.raises(DataError, match="no such revision"):
        hub_model_folder(f"{REPO}@no-such-branch")


def test_hub_model_asked_for_twice_at_once_is_fetched_once(hub, online, cache, monkeypatch):
    monkeypatch.setattr("marin.storage.lease.POLL", 0.02)
    hub.commit(FILES)
    hub.seconds_a_block = 0.02
    found = []
    threads = [threading.Thread(target=lambda: found.append(hub_model_folder(REPO))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 3
    assert sorted(hub.fetched) == sorted(WANTED)


def test_hub_model_without_network_says_where_to_put_it_and_takes_it_from_there(online, cache, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError) as refused:
        hub_model_folder(f"{REPO}@abc")
    target = cache / "some-lab--tiny-llama" / "abc"
    assert f"hf download {REPO} --repo-type model --revision abc" in str(refused.value)
    assert f"copy DIR's content to {target}" in str(refused.value)
    target.mkdir(parents=True)
    (target / "config.json").write_bytes(FILES["config.json"])
    assert hub_model_folder(f"{REPO}@abc") == target
    assert "are taken as they are, unchecked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "is_name"),
    [("a/b", True), ("meta-llama/Llama-3.2-1B@v1.0/x", True), ("a", False), ("/a/b", False), ("./a", False), ("../a", False), ("a/b/c", False), ("~/a", False)],
)  # fmt: skip
def test_hub_name_is_told_from_a_path(name, is_name):
    assert is_hub_name(name) is is_name
    if not is_name and not name.startswith("."):
        with pytest.raises(ConfigError, match="use `owner/name` or `owner/name@revision`"):
            hub_model_folder(name)
