"""From raw files to a mixture of tokens: import, clean, deduplicate, decontaminate, tokenize, mix, report.

    python -m experiments.prepare_corpora --prefix local_store

Reads 30 MB of technical English and prose below ../shared/data, or below the folder that MARIN_SHARED_DATA names; where
there is none, the embedded documentation of Python packages. To prepare other files, copy this file and change `RAW`,
`COMPONENTS` and `EVALUATION`; a path that no step makes is known by its name only, so new content needs a new name.

The last step writes `index.html`: what each stage kept and dropped, and why. `MIXTURE` is what a training config takes as
its `tokenized_dataset`. Two cores need about two minutes; a second run does nothing.
"""

import os
import pathlib

from experiments.python_docs import python_docs
from marin.data.cache import tokenize_step
from marin.data.deduplication.exact import dedup_exact_documents_step, dedup_exact_paragraphs_step
from marin.data.deduplication.fuzzy import dedup_fuzzy_documents_step
from marin.data.filters import gopher
from marin.data.filters.by_source import keep_sources_step
from marin.data.filters.decontamination import decontaminate_step
from marin.data.filters.rules import filter_by_rules_step
from marin.data.mixture import Mixture
from marin.data.sources import import_step
from marin.data.tokenizer import tokenizer_report_step, train_tokenizer_step
from marin.execution import InputName, executor_main
from marin.site.data_report import data_report_step

VOCAB_SIZE = 8192
SHARED = pathlib.Path(os.environ.get("MARIN_SHARED_DATA", "../shared/data"))

# --- what to read: the files, the sources that make a component and its weight, and what must not be trained on ---------

EVALUATION: dict[str, str | InputName]
if SHARED.is_dir():
    NAME = "corpora"
    # The rows of the .jsonl files name their own source. Shards of 8 MB, so that two processors have something to share.
    RAW = import_step("corpora/raw", f"{SHARED}/corpora", source_name="prose", shard_bytes=8_000_000)
    COMPONENTS = {
        "proposals": (("rust-lang/rfcs", "swiftlang/swift-evolution", "ethereum/EIPs"), 0.7),
        "book": (("rust-lang/book",), 0.1),
        "prose": (("prose",), 0.2),
    }
    EVALUATION = {"core": f"{SHARED}/core_eval_bundle/eval_data"}
else:
    NAME = "python_docs"
    RAW = import_step("python_docs/raw", python_docs / "train.jsonl.zst")
    COMPONENTS = {"mathematics": (("sympy", "mpmath"), 0.6), "other": (("dask", "docutils", "networkx", "nltk"), 0.4)}
    EVALUATION = {"python_docs_heldout": python_docs / "heldout.jsonl.zst"}

# --- clean ------------------------------------------------------------------------------------------------------------

# Whole books count as one document here, so the largest number of words is ten times the published one.
rules = (*gopher.quality_rules(max_words=1_000_000), *gopher.repetition_rules())
filtered = filter_by_rules_step(f"{NAME}/filtered", RAW, rules)
distinct = dedup_exact_documents_step(f"{NAME}/distinct", filtered)
paragraphs = dedup_exact_paragraphs_step(f"{NAME}/distinct_paragraphs", distinct)
fuzzy = dedup_fuzzy_documents_step(f"{NAME}/distinct_fuzzy", paragraphs)
clean = decontaminate_step(f"{NAME}/clean", fuzzy, EVALUATION)

# --- tokenize and mix -------------------------------------------------------------------------------------------------

tokenizer = train_tokenizer_step(clean, VOCAB_SIZE, name=f"tokenizers/{NAME}-{VOCAB_SIZE}")
tokenizer_report = tokenizer_report_step(tokenizer, clean, name=f"tokenizers/{NAME}-{VOCAB_SIZE}-report")
caches = {
    name: tokenize_step(f"{NAME}-{name}-{VOCAB_SIZE}", keep_sources_step(f"{NAME}/{name}", clean, sources), tokenizer)
    for name, (sources, _) in COMPONENTS.items()
}
MIXTURE = Mixture(components=caches, weights={name: weight for name, (_, weight) in COMPONENTS.items()})

report = data_report_step(
    f"reports/{NAME}",
    {
        "read": RAW,
        "filtered": filtered,
        "distinct documents": distinct,
        "distinct paragraphs": paragraphs,
        "distinct by MinHash": fuzzy,
        "decontaminated": clean,
    },
    MIXTURE,
    title=f"What was prepared: {NAME}",
)

if __name__ == "__main__":
    executor_main(steps=[tokenizer_report, report], description="From raw files to a mixture of tokens.")
