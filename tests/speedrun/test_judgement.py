"""Whether figures that somebody else found confirm a claim: one run, several seeds, with a track's noise and without."""

import random
from collections.abc import Sequence

import pytest
from forgeries.honest import Plan, write_submission

from marin.speedrun.results import RunInfo, load_results
from marin.speedrun.tracks import CPU_NOISE, PYTHON_DOCS
from marin.speedrun.verification.judgement import judge, kin_of, noise_of
from marin.speedrun.verification.statements import Kind, Measured

BITS = 1.68


@pytest.fixture(scope="module")
def of_track(tmp_path_factory: pytest.TempPathFactory) -> RunInfo:
    plan = Plan(steps=3, device="cpu", set_name=PYTHON_DOCS)
    folder = write_submission(tmp_path_factory.mktemp("s") / "s", [plan], random.Random(1))
    run = load_results(folder / "speedrun_results.json")[0]
    return run.model_copy(update={"tokenized_dataset": "tokenized/python_docs"})


def _claims(run: RunInfo, *bits: float, set_name: str = PYTHON_DOCS) -> list[RunInfo]:
    assert run.evaluation is not None
    blocks = [run.evaluation.model_copy(update={"bits_per_byte": value, "name": set_name}) for value in bits]
    return [run.model_copy(update={"evaluation": block, "seed": seed}) for seed, block in enumerate(blocks)]


def _found(*bits: float, seeds: Sequence[int] | None = None, run: int = 0) -> list[Measured]:
    return [
        Measured(run=run, bits_per_byte=value, seed=seed)
        for seed, value in zip(seeds or range(10, 10 + len(bits)), bits, strict=True)
    ]


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.0, "agrees"), (1.009, "agrees"), (0.991, "agrees"), (1.011, "differs")]
)
def test_one_run_is_held_to_a_percent_of_its_own_claim(of_track: RunInfo, factor: float, outcome: str) -> None:
    runs = _claims(of_track, BITS, 2 * BITS)
    own = judge(runs, 0, _found(BITS * factor, seeds=[0]), "re-run")
    assert own is not None and own.outcome == outcome
    assert judge(runs, 1, _found(BITS * factor, seeds=[0]), "re-run") is None


def test_what_training_took_again_is_said_beside_what_is_claimed(of_track: RunInfo) -> None:
    """A rerun that takes twice as long may have had other hardware; whoever ranks by time is to see it."""
    (claim,) = _claims(of_track, BITS)
    found = [item.model_copy(update={"training_time": 1200.0}) for item in _found(BITS, BITS, seeds=[10, 11])]
    claim = claim.model_copy(update={"training_time": 600.0})
    for measured in (found[:1], found):
        again = judge([claim], 0, measured, "re-run")
        assert again is not None and again.outcome != "differs"
        assert again.words.endswith("training took 1,200 s, on whatever hardware, where 600 s are claimed")
    scored = judge([claim], 0, found[:1], "re-evaluation")
    assert scored is not None and "took" not in scored.words


@pytest.mark.parametrize("kind", ["re-run", "re-evaluation"])
def test_equal_figures_of_a_score_that_is_no_prediction_confirm_nothing(of_track: RunInfo, kind: Kind) -> None:
    (found,) = _found(BITS, seeds=[0])
    agreed = judge(_claims(of_track, BITS), 0, [found], kind)
    assert agreed is not None and agreed.outcome == "agrees"
    failed = judge(_claims(of_track, BITS), 0, [found.model_copy(update={"failed_probes": ["causality"]})], kind)
    assert failed is not None and failed.outcome == "differs" and "(causality failed)" in failed.words


@pytest.mark.parametrize("kind", ["re-run", "re-evaluation"])
def test_equal_figures_of_a_process_with_replaced_code_decide_nothing(of_track: RunInfo, kind: Kind) -> None:
    (found,) = _found(BITS, seeds=[0])
    replaced = found.model_copy(update={"replaced": ["marin.evaluation.scoring.Scorer.nats"]})
    judged = judge(_claims(of_track, BITS), 0, [replaced], kind)
    assert judged is not None and judged.outcome == "undecided" and "behind marin.evaluation.scoring" in judged.words
    other = judge(_claims(of_track, 2 * BITS), 0, [replaced], kind)
    assert other is not None and other.outcome == "differs"


@pytest.mark.parametrize(
    ("gap", "spread", "outcome"),
    [
        (0.003, (-0.002, 0.002), "agrees"),
        (0.014, (-0.002, 0.002), "undecided"),  # outside the track's noise, inside what two runs alone allow
        (0.014, (-0.002, -0.001, 0.0, 0.001, 0.002), "differs"),
        (-0.014, (-0.002, -0.001, 0.0, 0.001, 0.002), "differs"),  # a claim that is too modest is of another run too
        (0.004, (-0.002, -0.001, 0.0, 0.001, 0.002), "agrees"),
        (0.014, (0.0, 0.0, 0.0), "differs"),  # runs that are equal take the track's noise
        (0.030, (-0.2, 0.2), "differs"),  # however wide the runs lie: over a percent
    ],
)
def test_several_seeds_are_held_to_the_mean_by_the_noise_of_the_track(
    of_track: RunInfo, gap: float, spread: tuple[float, ...], outcome: str
) -> None:
    assert noise_of(of_track) is CPU_NOISE
    runs = _claims(of_track, BITS - 0.001, BITS + 0.001)
    found = _found(*(BITS + gap + step for step in spread))
    for number in (0, 1):  # they speak for all runs of the experiment
        judgement = judge(runs, number, found, "re-run")
        assert judgement is not None and judgement.outcome == outcome, judgement
        assert f"in {len(spread)} runs (seeds 10, 11" in judgement.words and "the mean of 2 runs" in judgement.words


def test_spread_of_the_claims_does_not_widen_what_is_allowed(of_track: RunInfo) -> None:
    found = _found(*(BITS + 0.014 + step for step in (-0.002, -0.001, 0.0, 0.001, 0.002)))
    judgement = judge(_claims(of_track, BITS - 0.3, BITS + 0.3), 0, found, "re-run")
    assert judgement is not None and judgement.outcome == "differs"


def test_a_seed_that_is_measured_often_counts_once(of_track: RunInfo) -> None:
    judgement = judge(_claims(of_track, BITS), 0, _found(*[BITS + 0.014] * 5, seeds=[7] * 5), "re-run")
    assert judgement is not None and judgement.outcome == "agrees" and "seeds" not in judgement.words


def test_equal_runs_without_a_noise_model_decide_nothing(of_track: RunInfo) -> None:
    runs = _claims(of_track, BITS, set_name="books/heldout")
    assert noise_of(runs[0]) is None
    judgement = judge(runs, 0, _found(BITS, BITS), "re-run")
    assert judgement is not None and judgement.outcome == "undecided"
    apart = judge(runs, 0, _found(BITS - 0.001, BITS, BITS + 0.0011), "re-run")
    assert apart is not None and apart.outcome == "agrees" and "of these runs" in apart.words


def test_seeds_of_another_config_are_no_kin(of_track: RunInfo) -> None:
    one, other = _claims(of_track, BITS, BITS)
    other = other.model_copy(update={"model": {**(other.model or {}), "num_layers": 3}})
    assert kin_of([one, other], 0) == [0]
    assert judge([one, other], 1, _found(BITS - 0.001, BITS + 0.001), "re-run") is None


def _core(run: RunInfo, *values: float, version: str = "v1") -> list[RunInfo]:
    """Runs that claim CORE alone, as those of the Time-to-GPT-2 pipeline do."""
    bare = {"evaluation": None, "core_version": version}
    return [run.model_copy(update={**bare, "core_metric": value, "seed": seed}) for seed, value in enumerate(values)]


@pytest.mark.parametrize(
    ("gap", "outcome"), [(0.0, "agrees"), (0.0028, "agrees"), (0.0032, "differs"), (-0.0032, "differs")]
)
def test_core_scored_again_may_be_a_few_items_off(of_track: RunInfo, gap: float, outcome: str) -> None:
    judgement = judge(_core(of_track, 0.26), 0, [Measured(run=0, core=0.26 + gap)], "re-evaluation")
    assert judgement is not None and judgement.outcome == outcome and f"claimed are {0.26:.4f}" in judgement.words


@pytest.mark.parametrize(
    ("gap", "found", "outcome"),
    [
        (0.004, (-0.004, 0.0, 0.004), "agrees"),
        (0.019, (-0.004, 0.0, 0.004), "agrees"),  # three runs that lie so far apart allow it
        (0.021, (-0.004, 0.0, 0.004), "differs"),
        (0.012, (-0.0005, 0.0, 0.0005), "differs"),
    ],
)
def test_core_of_several_seeds_is_held_to_the_mean(
    of_track: RunInfo, gap: float, found: tuple[float, ...], outcome: str
) -> None:
    measured = [Measured(run=0, core=0.26 + gap + step, seed=10 + k) for k, step in enumerate(found)]
    judgement = judge(_core(of_track, 0.258, 0.262), 1, measured, "re-run")
    assert judgement is not None and judgement.outcome == outcome, judgement
    assert "CORE in 3 runs (seeds 10, 11, 12)" in judgement.words


def test_every_figure_that_is_claimed_must_have_been_measured(of_track: RunInfo) -> None:
    (run,) = _claims(of_track, BITS)
    both = [run.model_copy(update={"core_metric": 0.26, "core_version": "v1"})]
    bits, core = Measured(run=0, bits_per_byte=BITS), Measured(run=0, core=0.26)
    for one in (bits, core):
        judgement = judge(both, 0, [one], "re-evaluation")
        assert judgement is not None and judgement.outcome == "undecided" and "is claimed too" in judgement.words
    judgement = judge(both, 0, [bits, core], "re-evaluation")
    assert judgement is not None and judgement.outcome == "agrees"
    assert judge(_core(of_track, 0.26, version="v2"), 0, [core], "re-evaluation") is None


def test_bits_per_byte_do_not_refute_a_run_that_claims_a_loss_alone(of_track: RunInfo) -> None:
    assert of_track.evaluation is not None
    for loss, outcome in ((3.28, "undecided"), (None, "differs")):
        block = of_track.evaluation.model_copy(update={"bits_per_byte": None, "loss": loss})
        judgement = judge([of_track.model_copy(update={"evaluation": block})], 0, _found(BITS), "re-evaluation")
        assert judgement is not None and judgement.outcome == outcome


def test_measurement_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="neither bits_per_byte nor core"):
        Measured(run=0)
