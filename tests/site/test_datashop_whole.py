"""The page with the real pipeline: a run is started, killed at some instants, resumed, and gives the same dataset as one that was not."""

import io
import json
import pathlib
import random
import sys
import zipfile

import pytest
from datashop_pages import Client, shop_served

pytestmark = pytest.mark.slow
_COMMAND = (sys.executable, "-m", "marin", "datashop", "run")
_WANTED = ["matrix", "vector", "eigenvalue", "theorem", "lemma", "integral", "derivative", "polynomial"]
_OTHER = ["oven", "butter", "sugar", "flour", "onion", "simmer", "pepper", "kitchen", "dinner", "garlic"]


def _rows(count: int, every: int, seed: int) -> bytes:
    """Documents, of which each `every`-th is wanted."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        words = _WANTED if number % every == 0 else _OTHER
        text = " ".join(
            chance.choice(words) if chance.random() < 0.3 else f"{chance.getrandbits(12):x}" for _ in range(60)
        )
        rows.append(json.dumps({"id": f"{number % every == 0}-{seed}-{number}", "text": text}).encode() + b"\n")
    return b"".join(rows)


def _made(client: Client, kills: int) -> dict[str, bytes]:
    """The files of the dataset that the page makes, its run killed so many times."""
    pool = client.upload("pool.jsonl", _rows(600, 10, 1))["id"]
    examples = client.upload("examples.jsonl", _rows(100, 1, 2))["id"]
    run = client.post("/runs")[1]["location"]
    fields = {"name": "whole", "pool": [pool], "positives": [examples], "way": "examples", "vocab_size": "400"}
    client.post(run, action="review", keep_percent="10", **fields)
    client.post(run, action="start")
    chance = random.Random(3)
    for _ in range(kills):
        goal = chance.randrange(1, 10)
        client.until(lambda goal=goal: _num_done(client, run) >= goal or ">Resume<" in client.get(run), 300)
        client.post(run, action="kill")
        client.until(lambda: ">Resume<" in client.get(run) or "Download dataset" in client.get(run), 300)
        client.post(run, action="resume")
    client.until(lambda: "Download dataset" in client.get(run) or ">Resume<" in client.get(run), 600)
    assert "finished" in client.get(run), client.get(run)
    _, _, body = client.ask("GET", f"{run}/dataset.zip")
    assert client.get(f"{run}/samples").count('class="sample"') == 20
    assert "<h1>Datashop: whole</h1>" in client.get(f"{run}/report/index.html")
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def _num_done(client: Client, run: str) -> int:
    return client.get(run).count("badge success")


def test_dataset_of_a_killed_and_resumed_run_is_that_of_an_undisturbed_one(tmp_path: pathlib.Path) -> None:
    import pyarrow.parquet as pq

    made = []
    for folder, kills in (("calm", 0), ("killed", 3)):
        with shop_served(tmp_path / folder, command=_COMMAND) as client:
            made.append(_made(client, kills))
    assert list(made[0]) == list(made[1])
    (name,) = (name for name in made[0] if name.endswith(".parquet"))
    calm, killed = (pq.read_table(io.BytesIO(files[name])).to_pylist() for files in made)
    assert calm == killed and len(calm) == 60
    assert sum(row["id"].startswith("True") for row in calm) >= 57  # of the 60 wanted ones in the pool
