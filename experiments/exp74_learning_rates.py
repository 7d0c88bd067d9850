"""A sweep of learning rates with Muon and AdamW: which learns more in the same steps, each at its best rate?

    python -m experiments.exp74_learning_rates --prefix local_store
    marin report exp74 --prefix local_store

Twenty-four runs of seconds each, on two processor cores.
"""

from experiments.small_runs import small_run
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep
from marin.execution.sweep import sweep
from marin.optim import AdamConfig, MuonConfig, OptimizerConfig
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

preregistration = Preregistration(
    number=74,
    slug="learning_rates",
    question="Does Muon learn more than AdamW in the same number of steps, each at its best learning rate?",
    hypothesis="Muon is better by more than 0.02 bits per byte.",
    metric=Metric("bits per byte", "result.json:bits_per_byte", curve="bits_per_byte"),
    decision=Decision({"optimizer": "muon"}, {"optimizer": "adamw"}, effect=0.02, choose_with=(0,)),
    stopping_rule="Three rates and four seeds of each optimizer, 100 steps each. Seed 0 chooses the rates; seeds 1, 2 and 3 "
    "compare. No run is added or left out after a look at the results.",
    note="Two layers of width 64 after 100 steps, equal steps and not equal time. Muon's embeddings, head and norms learn with "
    "Adam at 0.01 whatever its rate. Nothing follows for large models.",
    command="python -m experiments.exp74_learning_rates --prefix local_store",
    looked_before="Single runs had been looked at before this was written.",
)


def make(optimizer: str, learning_rate: float, seed: int) -> ExecutorStep:
    config: OptimizerConfig
    if optimizer == "muon":
        config = MuonConfig(learning_rate=learning_rate, adam_lr=0.01, weight_decay=0.0)
    else:
        config = AdamConfig(learning_rate=learning_rate, weight_decay=0.0)
    return small_run(seed=seed, optimizer=config)


runs = sweep(make, optimizer=["adamw", "muon"], learning_rate=[0.005, 0.015, 0.05], seed=[0, 1, 2, 3])

if __name__ == "__main__":
    executor_main(steps=[*runs, experiment_step(preregistration, runs)], description=preregistration.question)
