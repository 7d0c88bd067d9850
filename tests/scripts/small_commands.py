"""What tests of the commands share: a small text, flags of a tiny model, and a command run as `python -m` would."""

import contextlib
import functools
import http.server
import json
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

from marin.data.core_tasks import CORE_TASKS
from marin.data.documents import Document, write_documents

_WORDS = "graph node edge path tree matrix vector sum limit proof returns value of the a and is"
# Of `base_train`, for a model that trains in seconds; how many steps and what is measured is the test's to say.
TINY = [
    "--depth=2", "--aspect-ratio=16", "--head-dim=16", "--max-seq-len=32", "--total-batch-size=256", "--device-batch-size=4",
    "--eval-tokens=400", "--core-metric-every=-1", "--device-type=cpu",
]  # fmt: skip


def write_text(folder: Path, num_train: int = 150, num_held_out: int = 20) -> None:
    """Two files of made documents in `text` below a base directory; the last one is held out."""
    choose = random.Random(0)
    for name, count in (("a", num_train), ("b", num_held_out)):
        documents = [
            Document(f"{name}{i}", " ".join(choose.choices(_WORDS.split(), k=40)), "test") for i in range(count)
        ]
        write_documents(str(folder / "text" / f"{name}.jsonl.zst"), documents)


def write_core_bundle(
    folder: Path,
    num_items: int = 6,
    kinds: Mapping[str, str] = MappingProxyType({"copa": "multiple_choice", "winograd": "schema"}),
) -> Path:
    """A bundle with two of CORE's tasks, or those of `kinds`, of a few made items."""
    choose = random.Random(1)
    (folder / "eval_data").mkdir(parents=True)
    entries = [
        {"label": label, "dataset_uri": f"{label}.jsonl", "num_fewshot": [0], "icl_task_type": kind}
        for label, kind in kinds.items()
    ]
    (folder / "core.yaml").write_text(json.dumps({"icl_tasks": entries}))  # which is YAML too
    baselines = "".join(f"{label},{CORE_TASKS[label].baseline}\n" for label in kinds)
    (folder / "eval_meta_data.csv").write_text(f"Eval Task,Random baseline\n{baselines}")
    for label, kind in kinds.items():
        lines = []
        for number in range(num_items):
            two = [" ".join(choose.choices(_WORDS.split(), k=4)) for _ in range(2)]
            shared = {"query": "the value of", "choices": two}
            if kind == "schema":
                shared = {"context_options": two, "continuation": "is the sum of a path"}
            if kind == "language_modeling":
                shared = {"context": two[0], "continuation": two[1]}
            lines.append(json.dumps(shared | {"gold": number % 2}) + "\n")
        (folder / "eval_data" / f"{label}.jsonl").write_text("".join(lines))
    return folder


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A server on loopback with the files of a folder: its address, and the paths that were asked for so far."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code: object = "-", size: object = "-") -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def where(folder: Path) -> list[str]:
    """The flags that name a base directory and its text."""
    return [f"--base-dir={folder}", f"--dataset={folder}/text"]


def run_script(command: ModuleType, *arguments: str) -> None:
    """Calls a command's `main` with these arguments."""
    before = sys.argv
    sys.argv = [command.__name__, *arguments]
    try:
        command.main()
    finally:
        sys.argv = before
