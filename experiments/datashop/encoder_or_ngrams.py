"""Is an encoder a better quality filter than n-grams? One sample, one set of labels, four classifiers, the same held-out documents.

    marin datashop run experiments/datashop/encoder_or_ngrams.py --prefix local_store
    MARIN_ENCODER=/models/gte-base-en-v1.5 marin datashop run experiments/datashop/encoder_or_ngrams.py

The wish and the pool are those of `graph_docs`: documents about graphs among the docstrings of Python packages. Compared are
n-grams, an encoder with a head on its frozen vectors, the same encoder fine-tuned, and a cascade of n-grams and the fine-tuned
encoder. `MARIN_ENCODER` names a local folder of BERT, RoBERTa or GTE weights. Without it the encoder is pretrained here by masked
prediction on the pool, and all that comes of it says "CPU size, no evidence about BERT". That takes some five minutes
of processor time.

Writes `datashop/encoder_or_ngrams/comparison-*/comparison.md`.
"""

import os
from typing import Any

from experiments.datashop import graph_docs
from marin.datashop.cascade import CascadeConfig
from marin.datashop.classifier import TrainClassifierConfig, train_classifier
from marin.datashop.comparison import CompareConfig, compare_classifiers
from marin.datashop.encoder import EncoderConfig
from marin.datashop.masked import pretrain_encoder_step
from marin.datashop.ngrams import NgramConfig
from marin.datashop.pipeline import datashop_steps
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep

NAME = "encoder_or_ngrams"

made = datashop_steps(graph_docs.config)
shared: dict[str, Any] = {"sample": made["sample"], "labels": made["labels"], "held_out_fraction": 0.2}

published = os.environ.get("MARIN_ENCODER")
encoder = published or pretrain_encoder_step(
    f"datashop/{NAME}/encoder",
    made["pool"],
    hidden_dim=96,
    intermediate_dim=256,
    num_layers=2,
    max_tokens=128,
    num_steps=300,
)
size: dict[str, Any] = (
    {"max_tokens": 512, "batch_size": 128, "learning_rate": 3e-5, "num_epochs": 5}
    if published
    else {
        "max_tokens": 128,
        "batch_size": 32,
        "learning_rate": 3e-4,
        "num_epochs": 6,
        "eval_every": 20,
        "pooling": "mean",
    }
)


def classifier(name: str, config: TrainClassifierConfig) -> ExecutorStep:
    """The step that trains one of the four."""
    return ExecutorStep(f"datashop/{NAME}/{name}", train_classifier, config, f"the classifier {name}")


ngrams = classifier("ngrams", NgramConfig(**shared))
frozen = classifier("frozen", EncoderConfig(**shared, encoder=encoder, fine_tune=False, **size))
fine_tuned = classifier("fine_tuned", EncoderConfig(**shared, encoder=encoder, **size))
cascade = classifier("cascade", CascadeConfig(**shared, dear=fine_tuned, recall=0.98))

comparison = ExecutorStep(
    f"datashop/{NAME}/comparison",
    compare_classifiers,
    CompareConfig(
        made["sample"],
        made["labels"],
        {
            "n-grams": ngrams,
            "encoder, frozen": frozen,
            "encoder, fine-tuned": fine_tuned,
            "n-grams, then encoder": cascade,
        },
        question="Is an encoder a better quality filter than n-grams?",
    ),
    "n-grams, encoders and a cascade on the same held-out documents",
)
steps = [comparison]

if __name__ == "__main__":
    executor_main(steps=steps, description="Is an encoder a better quality filter than n-grams?")
