"""Documents about graphs, found among the documentation of Python packages by 150 examples: no network, no model, no GPU.

    marin datashop run experiments/datashop/graph_docs.py --prefix local_store
    python -m experiments.datashop.graph_docs --prefix local_store

The pool is the embedded corpus, 11,000 docstrings of six packages. 150 of those of NetworkX are the examples; the others are
planted in the pool, and the report says how many were found, and how well their scores part them from the rest. Two cores
need about two minutes. To filter text of your own, copy this file and change `POOL` and `EXAMPLES`.
"""

from experiments.python_docs import python_docs
from marin.data.sources import import_step
from marin.datashop.ngrams import NgramConfig
from marin.datashop.pipeline import DatashopRunnerConfig
from marin.datashop.sampling import draw_documents_step
from marin.site.datashop_report import datashop_main

WANTED = "networkx"

POOL = import_step("graph_docs/raw", python_docs / "train.jsonl.zst", shard_bytes=2_000_000)
EXAMPLES = draw_documents_step("datashop/graph_docs/examples", POOL, 150, sources=[WANTED])

config = DatashopRunnerConfig(
    experiment_name="graph_docs",
    pretraining_data_path=POOL,
    positives=(EXAMPLES,),
    classifier=NgramConfig(held_out_fraction=0.2),
    keep_fraction=0.1,
    planted_sources=(WANTED,),
    eval_sets={"python_docs_heldout": python_docs / "heldout.jsonl.zst"},
    vocab_size=4096,
)

if __name__ == "__main__":
    datashop_main(config)
