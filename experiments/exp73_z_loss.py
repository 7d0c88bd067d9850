"""Z-loss or no z-loss: does the penalty on the logits' normalizer change what a small model learns?

    python -m experiments.exp73_z_loss --prefix local_store
    marin report exp73 --prefix local_store

Eight runs of seconds each, on two processor cores.
"""

from experiments.small_runs import small_run
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep
from marin.execution.sweep import sweep
from marin.optim import AdamConfig
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

preregistration = Preregistration(
    number=73,
    slug="z_loss",
    question="Does a z-loss of 1e-4 change how well a model learns?",
    hypothesis="It makes no difference that matters: less than 0.02 bits per byte.",
    metric=Metric("bits per byte", "result.json:bits_per_byte", curve="bits_per_byte"),
    decision=Decision({"z_loss": 1e-4}, {"z_loss": 0.0}, claim="same", effect=0.02),
    stopping_rule="Four seeds of each arm, 100 steps each; no run is added or left out after a look at the results.",
    note="Two layers of width 64 after 100 steps in float32. Nothing follows for large models: what z-loss is for, logits that "
    "drift over a long run in a narrow number format, cannot happen here.",
    command="python -m experiments.exp73_z_loss --prefix local_store",
    looked_before="Single runs had been looked at before this was written.",
)


def make(z_loss: float, seed: int) -> ExecutorStep:
    optimizer = AdamConfig(learning_rate=0.01, weight_decay=0.0)
    return small_run(seed=seed, optimizer=optimizer, train={"z_loss_weight": z_loss})


runs = sweep(make, z_loss=[0.0, 1e-4], seed=[0, 1, 2, 3])

if __name__ == "__main__":
    executor_main(steps=[*runs, experiment_step(preregistration, runs)], description=preregistration.question)
