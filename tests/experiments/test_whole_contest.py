"""The whole contest, for real: a person's clone, the published data's layout from a local hub, kills, a submission, the board.

The template's smallest size trains with other numbers in its preset; nothing else differs from what a person does. The hub serves
a token cache in Levanter's layout, a tokenizer and C4-EN shards under the published names.
"""

import gzip
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin.data.cache import write_cache
from marin.data.documents import Document, write_documents
from marin.data.hub_files import PALOMA_REPO, PALOMA_REVISION
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.data.zarr_store import LEVANTER
from marin.speedrun.board.leaderboard import collect
from marin.speedrun.results import load_results
from tests.workflows.conftest import Origin, git
from tests.workflows.runner import load, run_job

NAME = "my_idea"
PRESET = re.compile(r'^    "130m": Preset\(.*$', re.MULTILINE)
SMALL = '    "130m": Preset(_shape(16, 32, 1, 2, 2, seq_len=64), _muon(0.016, 0.0032, momentum=0.95, decay=0.8), 8, num_gpus=0, num_train_steps=60),'


def _hub_module(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("hub_servers", repository / "tests" / "data" / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hub(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a hub with the three repositories that the template needs."""
    folder = tmp_path_factory.mktemp("published")
    rng = random.Random(3)
    words = ["".join(rng.choices(["ba", "do", "ki", "lu", "me", "no"], k=rng.randint(1, 4))) for _ in range(200)]
    documents = [Document(str(n), " ".join(rng.choices(words, k=80)), "made up") for n in range(400)]
    write_documents(str(folder / "docs.jsonl.zst"), documents)
    train_tokenizer(TrainTokenizerConfig(str(folder / "docs.jsonl.zst"), 512, output_path=str(folder / "tokenizer")))
    tokenizer = Tokenizer.load(str(folder / "tokenizer"))
    rows = [[tokenizer.bos_id, *tokenizer.encode(document.text)] for document in documents[40:]]
    write_cache(
        str(folder / "cache" / "train"), rows, tokenizer_digest=tokenizer.digest, vocab_size=tokenizer.vocab_size, chunking=LEVANTER
    )  # fmt: skip
    lines = [json.dumps({"id": document.id, "text": document.text}) + "\n" for document in documents[:40]]
    shards = {
        f"c4_en/val/val_c4_en-0000{number}.jsonl.gz": gzip.compress("".join(lines[number::2]).encode())
        for number in (0, 1)
    }
    servers = _hub_module(repository)
    cache = servers.FakeHub("marin-community/fineweb-edu-pretokenized-10B")
    cache.commit(
        {str(p.relative_to(folder / "cache")): p.read_bytes() for p in (folder / "cache").rglob("*") if p.is_file()}
    )
    model = servers.FakeHub("marin-community/marin-tokenizer", "model")
    model.commit({"tokenizer.json": (folder / "tokenizer" / "tokenizer.json").read_bytes()})
    paloma = servers.FakeHub(PALOMA_REPO)
    commit = paloma.commit(shards)
    paloma.commits[PALOMA_REVISION] = paloma.commits[commit]
    for path in shards:
        paloma.files[f"datasets/{PALOMA_REPO}/resolve/{PALOMA_REVISION}/{path}"] = shards[path]
    hubs = (cache, model, paloma)

    class Together(servers.FileServer):
        def answer(self, request: Any) -> None:
            next((hub for hub in hubs if hub.repo in request.path), cache).answer(request)

    together = Together()
    yield together.url
    for server in (together, *hubs):
        server.close()


class Person:
    """Someone with a clone of the repository and a shell."""

    def __init__(self, origin: Origin, folder: Path, environment: dict[str, str]) -> None:
        self.clone, self.environment = folder / "marin", environment
        git(folder, "clone", "--quiet", str(origin.path), str(self.clone))
        git(self.clone, "checkout", "--quiet", "-b", NAME)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=self.clone, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out[-4000:]
        return out

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = list(self.clone.glob("local_store/checkpoints/speedrun/*/metrics.jsonl"))
        lines = [json.loads(line) for path in found for line in path.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == kind]

    def stop_training_after(self, steps: int, number: int) -> None:
        """Starts training and sends the signal once the log has so many more steps."""
        before = len(self.events("step"))
        process = self.start(*TRAIN)
        deadline = time.monotonic() + 600
        while len(self.events("step")) < before + steps:
            assert process.poll() is None, process.communicate()[0][-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.communicate(timeout=300)


TRAIN = (f"experiments.speedrun.{NAME}.main", "--force_run_failed", "true", "--prefix", "local_store")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_contest_from_the_template_over_kills_to_a_place_on_the_board(
    hub: str, repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    origin = Origin(tmp_path / "github")
    environment = plain_environment | {
        "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "MARIN_COMPILE_CACHE": os.environ["MARIN_COMPILE_CACHE"],
    }  # fmt: skip
    environment.pop("CI", None)
    person = Person(origin, tmp_path, environment)

    # ---- the template, with other sizes ------------------------------------------------------------------------------
    person.run("marin", "init", NAME, "--author-name", "Ada Lovelace", "--affiliation", "Independent", "--url", "https://example.org",
               "--description", "The template, small.")  # fmt: skip
    directory = person.clone / "experiments" / "speedrun" / NAME
    text, count = PRESET.subn(SMALL, (directory / "main.py").read_text())
    assert count == 1
    (directory / "main.py").write_text(text)
    git(person.clone, "add", ".")
    git(person.clone, "commit", "--quiet", "-m", "my idea")

    # ---- trains, is stopped and killed, resumes ----------------------------------------------------------------------
    person.stop_training_after(8, signal.SIGTERM)
    person.stop_training_after(8, signal.SIGKILL)
    person.run(*TRAIN)
    starts = [event["from_step"] for event in person.events("start")]
    assert len(starts) == 3 and 0 < starts[1] == starts[2]
    (info,) = load_results(person.clone / "local_store" / "speedrun_results.json")
    assert info.c4_en_bpb is not None and 0 < info.c4_en_bpb < 8
    assert info.num_resumes == 2 and info.num_train_steps == 60 and info.wasted_time and info.git_dirty is False
    assert info.validity is not None and info.validity.passed

    # ---- is submitted ------------------------------------------------------------------------------------------------
    out = person.run("marin", "submit", f"experiments/speedrun/{NAME}", "--prefix", "local_store")
    assert "run 0: reached log" in out and "Allow edits by maintainers" in out
    assert "as it will stand" in out
    git(person.clone, "add", ".")
    git(person.clone, "commit", "--quiet", "-m", f"speedrun: {NAME}")
    git(person.clone, "push", "--quiet", "origin", "HEAD:refs/pull/1/head")

    # ---- is validated by the workflow's steps, merged, and stands on the board -----------------------------------------
    context = {
        "github.event.pull_request.number": "1",
        "github.event.pull_request.base.sha": origin.base,
        "github.event.pull_request.head.sha": git(person.clone, "rev-parse", "HEAD"),
    }
    job = load("validate-speedrun.yml")["jobs"]["validate"]
    done = run_job(job, context, origin.path, tmp_path / "validating")
    assert done.failed is None, done.out
    assert f"submissions that change: {NAME}" in done.out and "reached: log" in done.out
    git(origin.path, "merge", "--quiet", "--no-ff", "-m", "merged", "refs/pull/1/head")
    job = load("leaderboard-site.yml")["jobs"]["build"]
    done = run_job(job, {"runner.temp": str(tmp_path / "temp")}, origin.path, tmp_path / "building")
    assert done.failed is None, done.out
    site = tmp_path / "building" / "temp" / "site"
    assert any("Ada Lovelace" in page.read_text() for page in site.rglob("*.html"))
    board = collect([origin.path / "experiments" / "speedrun"])
    (entry,) = [entry for track in board.tracks for entry in track.entries if entry.author == "Ada Lovelace"]
    assert entry.values["bits_per_byte"] == info.c4_en_bpb and entry.rank is not None

    # ---- somebody else checks it -------------------------------------------------------------------------------------
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-Urm", "true"], check=False).returncode:
        return
    (run,) = (person.clone / "local_store" / "checkpoints" / "speedrun").glob(f"{NAME}_130m-*/")
    path = f"experiments/speedrun/{NAME}"
    out = person.run("marin", "verify", path, "--evaluate", str(run), "--trust-code", "--data", "local_store")
    assert "\nconfirmed: " in out
    statement = json.loads((person.clone / f"{NAME}-re-evaluation.json").read_text())
    assert statement["predicate"]["measured"][0]["bits_per_byte"] == pytest.approx(info.c4_en_bpb, rel=1e-6)
    out = person.run("marin", "verify", path, "--rerun", "1", "--trust-code", "--data", "local_store")
    assert "\nconfirmed: " in out
