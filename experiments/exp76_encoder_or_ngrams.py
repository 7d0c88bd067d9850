"""Is an encoder a better quality filter than n-grams? The classifiers of `experiments/datashop/encoder_or_ngrams.py` over seeds.

    python -m experiments.exp76_encoder_or_ngrams --prefix local_store
    marin report exp76 --prefix local_store

The wish, the pool and the pretrained encoder are those of that file; a seed draws which labelled documents are held out, and
the order in which the encoder is fine-tuned.
"""

from typing import Any

from experiments.datashop import encoder_or_ngrams as compared
from marin.datashop.classifier import train_classifier
from marin.datashop.encoder import EncoderConfig
from marin.datashop.ngrams import NgramConfig
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep
from marin.execution.sweep import sweep
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

preregistration = Preregistration(
    number=76,
    slug="encoder_or_ngrams",
    question="Is an encoder a better quality filter than n-grams?",
    hypothesis="A fine-tuned encoder has a larger AUC than n-grams on held-out documents.",
    metric=Metric("AUC", "quality.json:auc.value", lower_is_better=False),
    decision=Decision({"classifier": "encoder"}, {"classifier": "ngrams"}),
    stopping_rule="Three seeds of each classifier; no run is added or left out after a look at the results.",
    note="CPU size, no evidence about BERT: the encoder has two layers of width 96 and was pretrained on the pool for minutes. The "
    "splits of the seeds overlap, so the interval is too narrow for documents of another kind.",
    command="python -m experiments.exp76_encoder_or_ngrams --prefix local_store",
    looked_before="A whole comparison of the two classifiers had been looked at before this was written.",
)


def make(classifier: str, seed: int) -> ExecutorStep:
    shared: dict[str, Any] = {**compared.shared, "seed": seed}
    config = (
        EncoderConfig(**shared, encoder=compared.encoder, **compared.size)
        if classifier == "encoder"
        else NgramConfig(**shared)
    )
    return ExecutorStep("datashop/encoder_or_ngrams_seeds", train_classifier, config)


runs = sweep(make, classifier=["ngrams", "encoder"], seed=[0, 1, 2])
shown = {"average precision": "quality.json:average_precision.value"}

if __name__ == "__main__":
    executor_main(
        steps=[*runs, experiment_step(preregistration, runs, shown=shown)], description=preregistration.question
    )
