"""Rust RFCs, found in 30 MB of proposals and prose by 100 examples; without that text, documents about graphs.

    marin datashop run experiments/datashop/rust_docs.py --prefix local_store

The pool is all text below ../shared/data/corpora, or below the folder that MARIN_SHARED_DATA names: proposals for Rust, Swift
and Ethereum, a book, an encyclopedia and plays. 100 of the RFCs are the examples; the others are planted. Proposals for another
language are the near misses. Where that text is not there, the file is `graph_docs`, which finds its pool on every machine.
"""

import os
import pathlib

from experiments.datashop import graph_docs
from marin.data.sources import import_step
from marin.datashop.pipeline import DatashopRunnerConfig
from marin.datashop.sampling import draw_documents_step
from marin.site.datashop_report import datashop_main

SHARED = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", "../shared/data"))
WANTED = "rust-lang/rfcs"

if (SHARED / "corpora").is_dir():
    POOL = import_step("rust_docs/raw", f"{SHARED}/corpora", source_name="prose", shard_bytes=8_000_000)
    EXAMPLES = draw_documents_step("datashop/rust_docs/examples", POOL, 100, sources=[WANTED])
    config = DatashopRunnerConfig(
        experiment_name="rust_docs",
        pretraining_data_path=POOL,
        positives=(EXAMPLES,),
        keep_fraction=0.3,
        planted_sources=(WANTED,),
        vocab_size=4096,
    )
else:
    config = graph_docs.config

if __name__ == "__main__":
    datashop_main(config)
