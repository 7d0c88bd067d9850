"""The two files of a new experiment as text: its module, which runs as it stands, and its preregistration for an issue."""

import dataclasses
import json

_MODULE = '''"""Experiment {number}: what it asks stands in `preregistration`.

    python -m experiments.{name} --prefix local_store
    marin report exp{number} --prefix local_store

It runs as it stands, six runs of seconds each on two processor cores. TODO marks what makes it yours; do it before the first
run: the preregistration is a part of the identity of the experiment's record.
"""

from experiments.small_runs import small_run
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep
from marin.execution.sweep import sweep
from marin.optim import AdamConfig
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

preregistration = Preregistration(
    number={number},
    slug={slug},
    question={question},
    hypothesis={hypothesis},
    # TODO: where the metric stands, as FILE:KEY below a run's output
    metric=Metric({metric}, "result.json:bits_per_byte", curve="bits_per_byte"),
    # TODO: the arms that answer the question, by values of the sweep's parameters
    decision=Decision({{"learning_rate": 0.01}}, {{"learning_rate": 0.003}}, effect={effect!r}),
    stopping_rule={stopping_rule},
    note="Two layers of width 64 after 100 steps: nothing follows for large models.",
    command="python -m experiments.{name} --prefix local_store",
)


def make(learning_rate: float, seed: int) -> ExecutorStep:
    """TODO: the run of one point; its arguments are the parameters of the sweep."""
    return small_run(seed=seed, optimizer=AdamConfig(learning_rate=learning_rate, weight_decay=0.0))


runs = sweep(make, learning_rate=[0.003, 0.01], seed=[0, 1, 2])

if __name__ == "__main__":
    executor_main(steps=[*runs, experiment_step(preregistration, runs)], description=preregistration.question)
'''

_ISSUE = """# {title}

**Question.** {question}

**Hypothesis.** {hypothesis}

**Metric.** {metric}

**Stopping rule.** {stopping_rule}

**What decides.** By how much the candidate is better than the baseline, seed by seed, and the 95 % interval of that (less of the
metric is better, unless the code's `Metric` says otherwise): supported if all of it is above {effect:g}, refuted if all of it is at
or below {effect:g}, else not decided. The arms and the rule stand in `Decision` of the code.

**Code.** `experiments/{name}.py`

**Report.** `docs/reports/{name}.md`, made by `marin report exp{number}` and linked here, whatever comes out.
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is asked of a person; each a single line but for what they typed themselves."""

    number: int
    slug: str
    question: str
    hypothesis: str
    metric: str
    stopping_rule: str
    effect: float

    @property
    def name(self) -> str:
        return f"exp{self.number}_{self.slug}"


def module_text(plan: Plan) -> str:
    """The experiment's module; whatever the texts hold, they stand in it as strings."""
    texts = {
        field: json.dumps(getattr(plan, field), ensure_ascii=False)
        for field in ("slug", "question", "hypothesis", "metric", "stopping_rule")
    }
    return _MODULE.format(number=plan.number, name=plan.name, effect=plan.effect, **texts)


def issue_text(plan: Plan) -> str:
    """The preregistration as the body of an issue, in Markdown."""
    fields = dataclasses.asdict(plan)
    return _ISSUE.format(title=f"exp{plan.number}: {plan.question}", name=plan.name, **fields)
