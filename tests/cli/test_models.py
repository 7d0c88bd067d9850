"""`marin models`: the catalogue, and publishing to a hub that stands on this machine."""

import argparse
import base64
import http.server
import json
import pathlib
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from marin.cli import models
from marin.errors import ConfigError

Marin = Callable[..., subprocess.CompletedProcess[str]]


class Hub:
    """As much of the hub as an upload of small files asks for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.created: list[dict[str, object]] = []
        self.tokens: set[str | None] = set()
        self.refuses = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.tokens.add(self.headers.get("Authorization"))
                status, answer = outer.answer(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, body: bytes) -> tuple[int, object]:
        if self.refuses:
            return 403, {"error": "You may not write here"}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.url}/ada/tiny", "name": "ada/tiny", "id": "ada/tiny"}
        if path == "/api/models/ada/tiny/preupload/main":
            asked = json.loads(body)["files"]
            return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
        if path == "/api/models/ada/tiny/commit/main":
            lines = [json.loads(line) for line in body.splitlines()]
            values = [line["value"] for line in lines if line["key"] == "file"]
            self.files |= {value["path"]: base64.b64decode(value["content"]) for value in values}
            return 200, {"commitUrl": f"{self.url}/ada/tiny/commit/abc", "commitOid": "abc", "success": True}
        return 200, {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub()
    yield served
    served.close()


@pytest.fixture
def exported(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder as `marin export` writes it, with files beside it that are nobody's business."""
    folder = tmp_path / "exported"
    folder.mkdir()
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "marin.json",
        "model.safetensors",
        ".env",
        "notes.txt",
    ):
        (folder / name).write_text(f"{{}} {name}")
    return folder


@pytest.fixture
def run(clone: pathlib.Path) -> pathlib.Path:
    """A finished run below a prefix, with the executor's record."""
    folder = clone / "store" / "small_run-12345678"
    folder.mkdir(parents=True)
    (folder / ".executor_status").write_text("SUCCESS\n")
    info = {"name": "small_run", "fn_name": "experiments.small_runs.train_small", "fingerprint": "12345678ff",
            "git_commit": "c" * 40, "git_dirty": True, "dependencies": [], "output_path": str(folder)}  # fmt: skip
    (folder / ".executor_info").write_text(json.dumps(info))
    (folder / "run.json").write_text(
        json.dumps({"model_class": "marin.models.llama:LlamaConfig", "num_parameters": 1234567})
    )
    lines = [{"event": "start", "from_step": 0}, *({"event": "step", "step": step, "tokens": 512} for step in range(4))]
    lines += [{"event": "evaluation", "step": 2, "bits_per_byte": 3.5}, {"event": "end", "steps": 4}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "result.json").write_text('{"bits_per_byte": 3.25}')
    return folder


def test_catalogue_has_finished_runs_with_what_made_them(marin: Marin, clone: pathlib.Path, run: pathlib.Path) -> None:
    (clone / "store" / "data-11111111").mkdir()  # no run
    done = marin("models", "list", "--prefix", "store")
    assert done.returncode == 0, done.stderr
    assert "1 model under" in done.stdout and "small_run-12345678" in done.stdout
    for text in ("1,234,567", "2,048", "bits per byte 3.2500", "cccccccccccc+"):
        assert text in done.stdout
    (run / ".executor_status").write_text("RUNNING\n")
    assert "0 models under" in marin("models", "list", "--prefix", "store").stdout


def test_catalogue_has_what_a_speedruns_results_measured_and_the_model_where_they_are_broken(
    marin: Marin, run: pathlib.Path
) -> None:
    (run / "result.json").unlink()
    info = {"author": {"name": "Ada", "affiliation": "Independent"}, "description": "small",
            "evaluation": {"name": "heldout", "bits_per_byte": 1.5}}  # fmt: skip
    results = json.dumps({"runs": [{"run_info": info}]})
    (run / "speedrun_results.json").write_text(results)
    assert "bits per byte 1.5000" in marin("models", "list", "--prefix", "store").stdout
    (run / "speedrun_results.json").write_text(results[:-5])
    assert "bits per byte 3.5000" in marin("models", "list", "--prefix", "store").stdout


@pytest.mark.parametrize(
    ("content", "figure"),
    [('{"bits_per_byte": 3.', "3.5000"), ("[1]", "3.5000"), ('{"bits_per_byte": "nan"}', None), ('{"bits_per_byte": [1]}', None)],
)  # fmt: skip
def test_catalogue_has_the_model_where_its_result_is_broken_or_no_number(
    marin: Marin, run: pathlib.Path, content: str, figure: str | None
) -> None:
    (run / "result.json").write_text(content)
    done = marin("models", "list", "--prefix", "store")
    assert done.returncode == 0 and "1 model under" in done.stdout, done.stderr
    assert (f"bits per byte {figure}" in done.stdout) if figure else ("bits per byte" not in done.stdout)


def test_catalogue_has_what_a_base_run_measured_at_its_end_and_else_its_training_loss(
    marin: Marin, run: pathlib.Path
) -> None:
    """A run shorter than the pace of its evaluations has no event of one; one with `--eval-every -1` measures nothing."""

    def listed(last_loss: float | str, **figures: float) -> str:
        losses = [9.0, last_loss]
        lines = [{"event": "step", "step": step, "tokens": 512, "loss": loss} for step, loss in enumerate(losses)]
        log = [{"event": "start", "from_step": 0}, *lines, {"event": "end", "steps": 2}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
        (run / "base_train.json").write_text(json.dumps(figures))
        return marin("models", "list", "--prefix", "store").stdout

    (run / "result.json").unlink()
    assert "val bpb 1.2500, core metric 0.1500 " in listed(8.0, val_bpb=1.25, core_metric=0.15)
    assert "training loss of the last step 8.0000" in listed(8.0, train_loss=8.0)
    assert " nothing " in listed("nan")


def test_publishing_uploads_the_model_its_card_and_nothing_else(
    marin: Marin, exported: pathlib.Path, run: pathlib.Path, hub: Hub
) -> None:
    arguments = ("models", "publish", str(exported), "ada/tiny", "--run", str(run))
    assert marin(*arguments, "--dry-run", HF_ENDPOINT=hub.url).returncode == 0
    assert hub.created == []
    done = marin(*arguments, "--private", HF_ENDPOINT=hub.url, HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    assert "published ada/tiny: commit abc" in done.stdout and "hf_secret" not in done.stdout + done.stderr
    assert set(hub.files) == {"README.md", "config.json", "marin.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}  # fmt: skip
    assert hub.files["model.safetensors"] == (exported / "model.safetensors").read_bytes()
    card = hub.files["README.md"].decode()
    assert card.startswith("---\n") and "1,234,567" in card and "c" * 40 in card and "12345678ff" in card
    assert str(run.parent) not in card
    assert "Bearer hf_secret" in hub.tokens


def test_publishing_that_the_hub_refuses_says_so_in_one_message(
    marin: Marin, exported: pathlib.Path, run: pathlib.Path, hub: Hub
) -> None:
    hub.refuses = True
    done = marin(
        "models", "publish", str(exported), "ada/tiny", "--run", str(run), HF_ENDPOINT=hub.url, HF_TOKEN="hf_x"
    )
    assert done.returncode == 2 and "was not uploaded" in done.stderr and "Traceback" not in done.stderr
    assert hub.files == {}


def test_publishing_without_a_network_says_so_in_one_message(
    marin: Marin, exported: pathlib.Path, run: pathlib.Path
) -> None:
    nobody = "http://127.0.0.1:9"  # discard: nothing listens there
    done = marin("models", "publish", str(exported), "ada/tiny", "--run", str(run), HF_ENDPOINT=nobody, HF_TOKEN="hf_x")
    assert done.returncode == 2 and "was not uploaded" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["ada/ti--ny", "ada/tiny.git", "ada/tiny-", "a..b/tiny", "ada/" + "x" * 97, "ada/ti ny", "a/b/c"])  # fmt: skip
def test_publishing_refuses_what_the_hub_would(
    name: str, exported: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (exported / "README.md").write_text("a card")
    parser = argparse.ArgumentParser()
    models.add_arguments(parser)
    for flags in (["--dry-run"], []):
        with pytest.raises(ConfigError, match="is no repository of the hub: give OWNER/NAME"):
            models.run(parser.parse_args(["publish", *flags, str(exported), name]))


def test_publishing_refuses_a_bad_name_a_folder_without_weights_and_one_without_a_card(
    marin: Marin, exported: pathlib.Path
) -> None:
    for arguments, said in (
        ((str(exported), "tiny"), "OWNER/NAME"),
        ((str(exported), "ada/tiny"), "--run RUN"),
        ((str(exported.parent / "none"), "ada/tiny"), "marin export"),
    ):
        done = marin("models", "publish", *arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
