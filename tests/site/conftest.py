"""What the tests of the pages look at, made here.

A small board in every state: checked, claimed, contradictory, unreadable, two evaluation sets. And a small prefix for the data
browser, with records by hand in the executor's formats and a file of every kind, and a server over it.
"""

import bz2
import contextlib
import gzip
import http.client
import json
import lzma
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import chromium
from local_server import answering

from marin.data.cache import write_cache
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.site.browser import app, roots
from marin.site.leaderboard.build import build_site
from marin.speedrun.results import Author, Compressors, Evaluation, RunInfo, write_results

HOSTILE = "</script><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">'\"{{7*7}}${7*7}"


def _run(number: int, **changes: Any) -> RunInfo:
    seconds, peak = 100.0 * (number + 1), 312e12
    values: dict[str, Any] = {
        # One has runs of most sizes, which make a family.
        "author": Author(name=f"Author {3 if number == 3 else 0}", affiliation="Independent", url="example.org/me"),
        "description": f"Run number {number}.",
        "resources": {"accelerator_type": "A100", "gpu_count": 1},
        "model_size": 10**6 * (number + 1),
        "model_flops": 0.3 * seconds * peak,
        "training_time": seconds,
        "training_hardware_flops": seconds * peak,
        "c4_en_bpb": 1.5 - 0.05 * number,
        "run_completion_timestamp": f"2026-01-{number + 1:02d} 00:00:00 UTC",
        "wandb_run_link": f"https://example.org/runs/{number}",
    }
    return RunInfo(**values | changes)


@pytest.fixture(scope="session")
def results_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("results")
    runs = {f"family/size_{number}": _run(number) for number in range(8)}
    runs["family/worse"] = _run(
        3,
        c4_en_bpb=1.9,
        description="off the frontier",
        author=Author(name="Somebody Else", affiliation="Elsewhere"),
        training_time=401.5,
        training_hardware_flops=401.5 * 312e12,
        wandb_run_link="https://example.org/runs/worse",
    )
    runs["too_good"] = _run(1, training_time=1e-9, c4_en_bpb=0.9)
    evaluation = Evaluation(
        name="python_docs", digest="ab" * 32, bits_per_byte=1.55, bytes=1000, tokens=300, documents=3
    )
    compressors = Compressors(gzip_9=2.5, xz_9=2.2, zstd_19=2.25)
    runs["hello"] = _run(
        9,
        author=Author(name="Author 9", affiliation="Independent", url="https://example.org/me"),
        c4_en_bpb=None,
        evaluation=evaluation,
        compressors=compressors,
        sample="Return the value.",
        seed=42,
    )
    for name, info in runs.items():
        write_results(root / name / "speedrun_results.json", info)
    (root / "broken").mkdir()
    (root / "broken" / "speedrun_results.json").write_text('{"runs": [')
    return root


@pytest.fixture(scope="session")
def hostile_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Markup, scripts, formulas and odd links in every text of a results file, and in a list of rows."""
    root = tmp_path_factory.mktemp("hostile")
    evaluation = Evaluation(name=HOSTILE, digest=HOSTILE, bits_per_byte=1.2)
    info = _run(
        0,
        author=Author(name=HOSTILE, affiliation=HOSTILE, url="javascript:document.title='hit'"),
        description=HOSTILE,
        evaluation=evaluation,
        resources={"accelerator_type": HOSTILE, "gpu_count": 2},
        sample=HOSTILE,
        run_completion_timestamp=HOSTILE,
        wandb_run_link="https://example.org/\"><script>document.title='hit'</script>",
        git_commit=HOSTILE,
    )
    write_results(root / "tree" / "<img src=x onerror=alert(1)>" / "speedrun_results.json", info)
    broken = root / "tree" / "<b>broken" / "speedrun_results.json"
    broken.parent.mkdir()
    broken.write_text(json.dumps({HOSTILE: 1, "author": {"name": HOSTILE}}))
    row = {"run_name": HOSTILE, "author": {"name": "=HYPERLINK(1)", "affiliation": "@x"}, "eval_paloma_c4_en_bpb": 1.0,
           "training_hardware_flops": 1e15, "wandb_link": "javascript:alert(1)"}  # fmt: skip
    (root / "runs.json").write_text(json.dumps([row]))
    return root


@pytest.fixture(scope="session")
def site(results_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("site")
    build_site([results_dir], [], output)
    return output


@pytest.fixture(scope="session")
def hostile_site(hostile_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("hostile_site")
    build_site([hostile_dir / "tree"], [hostile_dir / "runs.json"], output)
    return output


# --- the data browser ---------------------------------------------------------------------------------------------

MARKUP = "</pre></script><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"
HOSTILE_NAMES = (
    "<img src=x onerror=document.title='hit'>.txt",
    "quotes \"'&.json",
    "new\nline.log",
    "rtl \u202egnp.txt",
    "back\\slash.txt",
    "percent%2e%2e%2f.txt",
    "query?a=b&c#d.txt",
    "...",
    "{{7*7}}${7*7}.txt",
    "zero\u200bwidth.txt",
    os.fsdecode(b"bytes \xff\xfe.txt"),
)
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)


class BrowserPrefix:
    """A prefix with one experiment of six steps in different states; see `_write_prefix`."""

    corpus, tokenizer, cache = "corpora/docs-11111111", "tokenizers/bpe-22222222", "tokenized/docs-33333333"
    run, report, failed = "checkpoints/run-44444444", "reports/run-55555555", "filter/bad-66666666"
    texts = tuple(f"Document {number} is about matrices.\nIt has café number {number * 7}." for number in range(60))

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        _write_prefix(self)

    def add_training_step(self, step: int, **changes: Any) -> None:
        """What a training step appends to the running step's metrics."""
        entry = {"event": "step", "step": step, "tokens": 2048, "step_time": 0.5, "grad_norm": 1.0, "learning_rate": 0.01,
                 "loss": 4.0 + 4.0 / (step + 1), "time": 1.8e9 + step} | changes  # fmt: skip
        with open(self.path / self.run / "metrics.jsonl", "a") as stream:
            stream.write(json.dumps(entry) + "\n")

    def beat(self) -> None:
        """The running step's heartbeat."""
        parent, base = self.run.rsplit("/", 1)
        heartbeat = self.path / parent / ".attempts" / base / "heartbeat-2.json"
        heartbeat.write_text("{}")
        # An hour ahead: the prefix serves many tests, and a real step would renew it all the while.
        os.utime(heartbeat, (time.time() + 3600, time.time() + 3600))

    def finish(self) -> None:
        """The running step ends, as the executor ends one."""
        (self.path / self.run / ".executor_status").write_text("SUCCESS\n")


def _info(prefix: str, output: str, reads: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "name": output.rsplit("-", 1)[0],
        "fn_name": f"package.{output.split('/')[0]}",
        "config": {"learning_rate": 0.01, "layers": [1, 2], "note": "configured", "output_path": f"{prefix}/{output}"},
        "description": f"about {output.rsplit('-', 1)[0]}",
        "fingerprint": output[-8:] * 8,
        "version": {"name": output.rsplit("-", 1)[0], "config": {"fn": "f"}, "dependencies": []},
        "dependencies": [f"{prefix}/{other}" for other in reads],
        "output_path": f"{prefix}/{output}",
        "override_output_path": None,
        "worker_id": "host:1",
        "created_date": "2026-11-21T10:00:00+00:00",
        "git_commit": "0123456789abcdef",
        "git_dirty": True,
    } | more


def _write_prefix(prefix: BrowserPrefix) -> None:
    root, base = prefix.path, str(prefix.path)
    infos = {
        prefix.corpus: _info(base, prefix.corpus, output_bytes=1234567, output_files=4, seconds=12.5),
        prefix.tokenizer: _info(base, prefix.tokenizer, (prefix.corpus,)),
        prefix.cache: _info(base, prefix.cache, (prefix.corpus, prefix.tokenizer)),
        prefix.run: _info(base, prefix.run, (prefix.cache, prefix.tokenizer), attempt=2, host="machine-7"),
        prefix.report: _info(base, prefix.report, (prefix.run,)),
        prefix.failed: _info(base, prefix.failed, (prefix.corpus, "/elsewhere/data-1")),
    }
    infos[prefix.cache]["config"]["tokenizer"] = f"{base}/{prefix.tokenizer}"
    done = (prefix.corpus, prefix.tokenizer, prefix.cache)
    for output in done:
        (root / output).mkdir(parents=True)
        (root / output / ".executor_info").write_text(json.dumps(infos[output]))
        (root / output / ".executor_status").write_text("SUCCESS\n")
    for output, status in ((prefix.run, "RUNNING\n"), (prefix.failed, "FAILED\n")):
        parent, name = output.rsplit("/", 1)
        attempt = root / parent / ".attempts" / name / "2" / name
        attempt.mkdir(parents=True)
        (root / output).symlink_to(pathlib.Path(".attempts", name, "2", name))
        (root / parent / ".attempts" / name / "ledger").mkdir()
        (root / parent / ".attempts" / name / "ledger" / "00000002.json").write_text('{"kind": "claim"}')
        (attempt / ".executor_info").write_text(json.dumps(infos[output]))
        (attempt / ".executor_status").write_text(status)
        lines = "".join(f"line {number} of {name}\n" for number in range(2000))
        (attempt / ".executor_log.txt").write_text(lines + f"the end of {name}\n")
    (root / prefix.failed / ".executor_error.txt").write_text("Traceback:\nValueError: the reason <b>why</b>\n")
    (root / "experiments").mkdir()
    record = {"created_date": "2026-11-21T10:00:00+00:00", "user": "someone", "prefix": base, "description": "The main one",
              "git_commit": "0123456789abcdef", "host": "machine-7", "steps": list(infos.values())}  # fmt: skip
    (root / "experiments" / "main-abc123.json").write_text(json.dumps(record))
    older = record | {
        "created_date": "2026-11-20T10:00:00+00:00",
        "description": "An older one",
        "steps": record["steps"][:1],
    }
    (root / "experiments" / "older-abc456.json").write_text(json.dumps(older))
    _write_data(prefix)
    prefix.beat()
    run = {"config": {"train": {"num_train_steps": 50}}}
    (root / prefix.run / "run.json").write_text(json.dumps(run))
    (root / prefix.run / "metrics.jsonl").write_text('{"event": "start", "from_step": 0, "time": 1.8e9}\n')
    for step in range(8):
        prefix.add_training_step(step)


def _write_data(prefix: BrowserPrefix) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    corpus, tokenizer = prefix.path / prefix.corpus, prefix.path / prefix.tokenizer
    documents = [Document(f"id-{number}", text, "tests") for number, text in enumerate(prefix.texts)]
    write_documents(str(corpus / "train.jsonl.zst"), documents)
    lines = [json.dumps({"id": f"id-{number}", "text": text}) + "\n" for number, text in enumerate(prefix.texts)]
    (corpus / "train.jsonl").write_text("".join(lines))
    packers = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    for ending, pack in packers.items():
        (corpus / f"train.jsonl.{ending}").write_bytes(pack("".join(lines).encode()))
    columns = {
        "id": list(range(60)),
        "text": list(prefix.texts),
        "blob": [b"\0\1"] * 60,
        "nested": [{"a": [1, 2]}] * 60,
    }
    pq.write_table(pa.table(columns), corpus / "rows.parquet", row_group_size=25)
    (corpus / "picture.png").write_bytes(PNG)
    (corpus / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>")
    (corpus / "weights.bin").write_bytes(bytes(range(256)) * 10)
    train_tokenizer(TrainTokenizerConfig(str(corpus / "train.jsonl.zst"), 300, str(tokenizer)))
    opened = Tokenizer.load(str(tokenizer))
    rows = [[opened.bos_id, *ids] for ids in opened.encode_batch(prefix.texts)]
    write_cache(str(prefix.path / prefix.cache / "train"), rows, tokenizer_digest=opened.digest, vocab_size=300)


@pytest.fixture
def make_prefix(tmp_path: pathlib.Path) -> Callable[[], BrowserPrefix]:
    """A prefix of its own for a test that changes it."""
    return lambda: BrowserPrefix(tmp_path / "store")


@pytest.fixture(scope="session")
def browser_prefix(tmp_path_factory: pytest.TempPathFactory) -> BrowserPrefix:
    """The prefix that tests share and leave as it is, with a folder of hostile names and contents."""
    prefix = BrowserPrefix(tmp_path_factory.mktemp("browser") / "store")
    hostile = prefix.path / "hostile"
    hostile.mkdir()
    for name in HOSTILE_NAMES:
        (hostile / name).write_text(
            json.dumps({MARKUP: MARKUP}) if name.endswith(".json") else f"{MARKUP}\n\u202ehidden\x1b[31m\n"
        )
    (hostile / "rows.jsonl").write_text(json.dumps({MARKUP: [MARKUP, {"deep": MARKUP}], "half": "\ud800"}) + "\n")
    step = hostile / "step-77777777"
    step.mkdir()
    info = _info(str(prefix.path), "hostile/step-77777777", (prefix.corpus,), name=MARKUP, description=MARKUP)
    (step / ".executor_info").write_text(json.dumps(info | {MARKUP: MARKUP, "config": {MARKUP: [MARKUP]}}))
    (step / ".executor_status").write_text("FAILED\n")
    (step / ".executor_error.txt").write_text(MARKUP)
    (step / ".executor_log.txt").write_text(MARKUP)
    metrics = [{"event": "step", "step": n, MARKUP: n, "loss": 1.0 + n} for n in range(3)]
    (step / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    record = {
        "created_date": "2026-01-01",
        "prefix": str(prefix.path),
        "description": MARKUP,
        "user": MARKUP,
        MARKUP: MARKUP,
        "steps": [info],
    }
    (prefix.path / "experiments" / f"{HOSTILE_NAMES[0]}.json").write_text(json.dumps(record))
    return prefix


class Answer:
    """What the server said."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()
        self.text = self.body.decode(errors="replace")


class BrowserClient:
    """Asks for paths exactly as they are written, which a browser would tidy up first."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, method: str = "GET", host: str | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
        connection.endheaders()
        with contextlib.closing(connection):
            return Answer(connection.getresponse())


@contextlib.contextmanager
def serving(*folders: pathlib.Path) -> Iterator[BrowserClient]:
    shown = roots.make_roots([str(folder) for folder in folders])
    with answering(lambda port: app.build_app(shown, port)) as port:
        yield BrowserClient(port)


@pytest.fixture(scope="session")
def client(browser_prefix: BrowserPrefix) -> Iterator[BrowserClient]:
    """A server over the shared prefix."""
    with serving(browser_prefix.path) as opened:
        yield opened


@pytest.fixture
def serve() -> Callable[..., contextlib.AbstractContextManager[BrowserClient]]:
    """Starts a server over folders of a test's own."""
    return serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium, driven by Playwright, for the tests of a file."""
    with chromium() as launched:
        yield launched
