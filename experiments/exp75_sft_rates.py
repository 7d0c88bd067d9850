"""How the learning rate of pretraining affects finetuning: is a model that was pretrained at a higher rate finetuned worse?

    python -m experiments.exp75_sft_rates --prefix local_store
    marin report exp75 --prefix local_store

Nine pretraining runs and nine finetuning runs of seconds each, on two processor cores. Finetuning is the same for all: Adam at
one rate, on conversations that the project makes.
"""

from experiments.small_runs import small_run, small_sft
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep
from marin.execution.sweep import sweep
from marin.optim import AdamConfig
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

preregistration = Preregistration(
    number=75,
    slug="sft_rates",
    question="Does the learning rate of pretraining decide how well finetuning goes?",
    hypothesis="A model pretrained at 0.01 answers better after finetuning than one pretrained at 0.04.",
    metric=Metric("bits per byte of answers", "sft.json:val_bpb", curve="val_bpb"),
    decision=Decision({"pretraining_rate": 0.01}, {"pretraining_rate": 0.04}, effect=0.0),
    stopping_rule="Three rates and three seeds, 100 steps of pretraining and 60 of finetuning each; no run is added or left out "
    "after a look at the results.",
    note="Two layers of width 64. Nothing follows for large models; that the answers are learned at all is due to their being "
    "spelling, counting and sums that a program made.",
    command="python -m experiments.exp75_sft_rates --prefix local_store",
    looked_before="Single runs had been looked at before this was written.",
)


def make(pretraining_rate: float, seed: int, name: str) -> list[ExecutorStep]:
    optimizer = AdamConfig(learning_rate=pretraining_rate, weight_decay=0.0)
    base = small_run(f"small_run/{name}", seed=seed, optimizer=optimizer)
    return [base, small_sft(f"small_sft/{name}", base, learning_rate=0.002, num_steps=60, seed=seed)]


runs = sweep(make, pretraining_rate=[0.0025, 0.01, 0.04], seed=[0, 1, 2])
shown = {"bits per byte before": "result.json:bits_per_byte"}

if __name__ == "__main__":
    executor_main(
        steps=[*runs, experiment_step(preregistration, runs, shown=shown)], description=preregistration.question
    )
