"""Whether Levanter and this project read each other's token caches, token for token.

    python -m benchmarks.levanter_interop                     # reads the cache that Levanter wrote, in ../shared/data
    python -m benchmarks.levanter_interop --environment DIR   # and has Levanter read ours, from the environment in DIR

Levanter needs other versions than this project, so it gets an environment of its own. These work together; the last two
it imports and does not ask for. pip takes more than a quarter of an hour to choose the versions, uv a minute:

    python3.11 -m venv DIR
    uv pip install --python DIR/bin/python 'levanter==1.2.dev1535' 'jax==0.6.2' 'equinox<0.13' 'datasets>=3.2' 'pyarrow<21' \\
        'chex==0.1.90' gitpython

Two caches of ours are written, one with the published settings and one with ours, which differ in the size of blosc's
blocks. Levanter opens each as it opens a cache to train on, and all tokens and all documents are compared. Prints one JSON
line a check; exit status 1 if one fails.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from marin.data.cache import TokenCache, write_cache
from marin.data.zarr_store import LEVANTER, OURS
from marin.flags import HelpFormatter

SHARED_DATA = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data"))
_VOCAB_SIZE = 8192
# Runs in Levanter's environment, which has nothing of this project.
_READ_WITH_LEVANTER = """
import json, sys, importlib.metadata
import numpy as np
from levanter.store.cache import TreeCache
from levanter.store.tree_store import TreeStore

path, expected_path = sys.argv[1:]
expected = np.load(expected_path)
exemplar = {"input_ids": np.zeros((0,), dtype=np.int32)}
cache = TreeCache.load(path, exemplar)
store = cache.store.tree["input_ids"]
tokens = np.asarray(store.data[0 : store.data_size].read().result())
rows = [np.asarray(row["input_ids"]) for row in cache.store.get_batch_sync(list(range(len(cache.store))))]
print(json.dumps({
    "documents": len(cache.store),
    "tokens": int(tokens.size),
    "same_tokens": bool(np.array_equal(tokens, expected["flat"])),
    "same_documents": [len(row) for row in rows] == expected["lens"].tolist()
        and bool(np.array_equal(np.concatenate(rows), expected["flat"])),
    "finished": bool(cache.ledger.is_finished),
    "versions": {name: importlib.metadata.version(name) for name in ("levanter", "jax", "tensorstore")},
}))
"""


def read_theirs() -> bool:
    """The cache that Levanter wrote, against the arrays that were written beside it."""
    folder = SHARED_DATA / "levanter_cache"
    expected = np.load(folder / "expected.npz")
    documents = np.split(expected["flat"], np.cumsum(expected["lens"])[:-1])
    # Its ledger counts 550 rows: the 300 documents in runs of 100, each of which begins 50 after the one before.
    rows = [documents[index] for start in range(0, 300, 50) for index in range(start, min(start + 100, 300))]
    cache = TokenCache.open(str(folder / "train"))
    same = np.array_equal(cache.tokens[:], np.concatenate(rows))
    same &= np.diff(cache.document_offsets).tolist() == [len(row) for row in rows]
    print(json.dumps({"name": "read_levanters_cache", "ok": same, "documents": len(rows), "tokens": len(cache)}))
    return same


def have_ours_read(environment: str) -> bool:
    """Caches of ours through Levanter's own reader."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(0, _VOCAB_SIZE, size).tolist() for size in generator.integers(1, 3000, 400)]
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        expected = os.path.join(folder, "expected.npz")
        lengths = np.array([len(row) for row in rows])
        np.savez(expected, flat=np.array(list(itertools.chain.from_iterable(rows)), np.int32), lens=lengths)
        for name, chunking in (("published_chunking", LEVANTER), ("our_chunking", OURS)):
            path = os.path.join(folder, name)
            write_cache(path, rows, tokenizer_digest="0" * 64, vocab_size=_VOCAB_SIZE, chunking=chunking)
            found = _run_levanter(environment, path, expected)
            same = bool(found["same_tokens"] and found["same_documents"] and found["finished"])
            passed &= same
            print(json.dumps({"name": f"levanter_reads_ours_{name}", "ok": same, **found}))
    return passed


def _run_levanter(environment: str, path: str, expected: str) -> dict[str, object]:
    python = os.path.join(environment, "bin", "python")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JAX_", "XLA_"))}
    done = subprocess.run(
        [python, "-c", _READ_WITH_LEVANTER, path, expected],
        env=variables | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: Levanter could not read {path}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--environment", metavar="DIR", help="a virtual environment with Levanter")
    args = parser.parse_args()
    if args.environment and not os.path.isfile(os.path.join(args.environment, "bin", "python")):
        sys.exit(f"error: {args.environment} has no bin/python: make the environment as the module's docstring says")
    passed = True
    if (SHARED_DATA / "levanter_cache").is_dir():
        passed &= read_theirs()
    else:
        print(f"{SHARED_DATA / 'levanter_cache'} is not there, so it is not read: set MARIN_SHARED_DATA")
    if args.environment:
        passed &= have_ours_read(args.environment)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
