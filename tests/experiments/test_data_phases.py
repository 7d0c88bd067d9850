"""Runs in phases: steps, batches and mixtures that follow from tokens; and what the large models' plans print."""

import dataclasses

import pytest

from experiments import marin_8b, marin_32b
from experiments.data_phases import Phase, batch_sizes, component_names, first_steps, mixture_weights
from experiments.sharding_plan import cost_text
from marin.data.batch_schedule import BatchSchedule
from marin.resources import TpuPodConfig

PHASES = (
    Phase("first", 64 * 8 * 10, 8, {"web": 0.9, "code": 0.1}),
    Phase("second", 64 * 8 * 5, 8, {"web": 1.0}),
    Phase("third", 64 * 16 * 4, 16, {"books": 1.0}),
)


def test_steps_follow_from_tokens_and_batches():
    assert first_steps(PHASES, 64) == [0, 10, 15, 19]
    assert batch_sizes(PHASES, 64) == [(0, 8), (15, 16)]
    assert [start for start, _ in mixture_weights(PHASES, 64)] == [0, 10, 15]
    assert component_names(PHASES) == ["web", "code", "books"]
    rows = BatchSchedule.of(batch_sizes(PHASES, 64)).offset_at(19)
    assert rows * 64 == sum(phase.tokens for phase in PHASES)


@pytest.mark.parametrize(("module", "tokens"), [(marin_8b, 12.44e12), (marin_32b, 6.44e12)], ids=["8b", "32b"])
def test_large_models_train_on_the_tokens_of_their_phases(module, tokens):
    train, model = module.train_config, module.train_step.config.model
    assert train.num_train_sequences * model.max_seq_len == pytest.approx(tokens, rel=1e-3)
    assert sum(phase.tokens for phase in module.PHASES) == pytest.approx(tokens, rel=1e-3)
    starts = first_steps(module.PHASES, model.max_seq_len)
    rate = train.build_optimizer().schedule(train.num_train_steps)
    peak = train.learning_rate
    assert float(rate(starts[1] // 2)) == pytest.approx(peak)  # in the first plateau
    assert float(rate(train.num_train_steps - 1)) == pytest.approx(0.01 * peak, rel=0.02)
    if module is marin_8b:  # cooled down before it is heated again
        assert float(rate(starts[3] - 1)) < 0.02 * peak < peak == pytest.approx(float(rate(starts[3] + 3000)))


def test_hours_and_cost_are_flops_over_what_the_chips_can_do():
    train = dataclasses.replace(marin_8b.train_config, resources=TpuPodConfig("v5p-8"))
    text = cost_text(marin_8b.marin_8b, marin_8b.VOCAB_SIZE, train, None, 2.0)
    tokens = train.num_train_sequences * 4096
    flops = 3 * marin_8b.marin_8b.flops_per_token(marin_8b.VOCAB_SIZE, 4096) * tokens
    hours = flops / (4 * 459e12 * 0.5) / 3600
    assert f"at 50% of the peak of 4 x v5p: {hours:,.0f} hours" in text
    assert f"{hours * 4 * 2:,.0f} at 2 a chip-hour" in text
    assert "--price_per_chip_hour" in cost_text(marin_8b.marin_8b, marin_8b.VOCAB_SIZE, train, 8, None)
