import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from marin.data.cache import TokenCache, write_cache
from marin.data.pretokenized import PretokenizedCacheDownloadConfig, download_pretokenized_cache, known_vocab_size
from marin.errors import ConfigError
from marin.execution.step import this_output_path

REPO = "some-lab/tiny"
DOWNLOAD = """
import sys
from marin.errors import MarinError
from marin.data.pretokenized import PretokenizedCacheDownloadConfig, _actually_download_pretokenized_cache
try:
    _actually_download_pretokenized_cache(PretokenizedCacheDownloadConfig(sys.argv[1], "gpt2", sys.argv[2]))
except MarinError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def hub(hub, tmp_path):
    """The hub with a token cache as its one repository."""
    write_cache(str(tmp_path / "published" / "train"), [[0, 5, 6], [0, 7], [0]], tokenizer_digest="t", vocab_size=8)
    root = tmp_path / "published"
    hub.commit({str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()})
    return hub


def download(target: pathlib.Path, repo: str, endpoint: str, home: pathlib.Path) -> str:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.getcwd(),
    }
    environment.pop("HF_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-c", DOWNLOAD, str(target), repo],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_download_interrupted_then_repeated_fetches_only_what_is_missing(hub, tmp_path):
    target = tmp_path / "out"
    (broken,) = (path for path in hub.files if path.endswith("train/input_ids/data/c/0"))
    content = hub.files.pop(broken)
    message = download(target, REPO, hub.url, tmp_path / "home")
    assert message.startswith("DataError")
    assert "run the same command again" in message

    hub.files[broken] = content
    there = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    hub.asked.clear()
    assert download(target, REPO, hub.url, tmp_path / "home") == ""
    cache = TokenCache.open(str(target))
    np.testing.assert_array_equal(cache.tokens[:], [0, 5, 6, 0, 7, 0])
    assert "train/input_ids/data/c/0" in hub.fetched
    assert not there & set(hub.fetched)


def test_download_interrupted_behind_the_training_part_fetches_the_rest(hub, tmp_path):
    target = tmp_path / "out"
    train = {path.partition("/train/")[2]: content for path, content in hub.files.items() if "/train/" in path}
    hub.commit({f"{split}/{name}": content for split in ("train", "validation") for name, content in train.items()})
    (broken,) = (path for path in hub.files if path.endswith("validation/shard_ledger.json"))
    content = hub.files.pop(broken)
    assert download(target, REPO, hub.url, tmp_path / "home").startswith("DataError")
    assert len(TokenCache.open(str(target))) == 6  # the part that is whole hides nothing of the other

    hub.files[broken] = content
    assert download(target, REPO, hub.url, tmp_path / "home") == ""
    assert len(TokenCache.open(str(target / "validation"))) == 6


def test_download_of_an_unknown_repository_says_what_to_check(hub, tmp_path):
    message = download(tmp_path / "out", "some-lab/other", hub.url, tmp_path / "home")
    assert message.startswith("DataError")
    assert "some-lab/other" in message
    assert "HF_TOKEN" in message


def test_download_without_network_says_what_to_fetch_and_where_to_put_it(hub, tmp_path):
    target = tmp_path / "out"
    message = download(target, REPO, "http://127.0.0.1:9", tmp_path / "home")
    assert message.startswith("DataError")
    assert f"hf download {REPO} --repo-type dataset --local-dir DIR" in message
    assert f"copy DIR's content to {target}" in message

    shutil.copytree(tmp_path / "published", target, dirs_exist_ok=True)
    assert download(target, REPO, "http://127.0.0.1:9", tmp_path / "home") == ""


def test_download_step_for_the_published_set_prints_as_documented():
    step = download_pretokenized_cache(
        "fineweb-edu-10B", "marin-community/fineweb-edu-pretokenized-10B", "marin-community/marin-tokenizer"
    )
    assert re.sub(r" at 0x[0-9a-f]+", "", repr(step)) == (
        "ExecutorStep(name='tokenized/subcache/fineweb-edu-10B', fn=<function _actually_download_pretokenized_cache>, "
        "config=PretokenizedCacheDownloadConfig(cache_path=OutputName(name=None), "
        "tokenizer=VersionedValue(value='marin-community/marin-tokenizer'), "
        "hf_repo_id=VersionedValue(value='marin-community/fineweb-edu-pretokenized-10B'), "
        "hf_revision=VersionedValue(value=None), hf_repo_type_prefix='datasets', hf_token=None, "
        "format=TextLmDatasetFormat(text_key='text'), cache_options=None, tags=[]), description=None, "
        "override_output_path=None, pip_dependency_groups=None)"
    )


@pytest.mark.parametrize(
    ("field", "value"), [("hf_token", "secret"), ("cache_options", {}), ("hf_repo_type_prefix", "dataset")]
)
def test_download_config_with_an_unsupported_value_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field) as caught:
        PretokenizedCacheDownloadConfig(this_output_path(), "gpt2", REPO, **{field: value})
    assert "secret" not in str(caught.value)


def test_known_vocab_size_of_an_unknown_tokenizer_is_refused():
    assert known_vocab_size("marin-community/marin-tokenizer") == 128_256
    with pytest.raises(ConfigError, match="some-lab/unknown"):
        known_vocab_size("some-lab/unknown")
