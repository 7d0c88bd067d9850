"""What tests of the commands share: a small text, flags of a tiny model, and a command run as `python -m` would."""

import random
import sys
from pathlib import Path
from types import ModuleType

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
