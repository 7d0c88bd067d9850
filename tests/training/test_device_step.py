"""`benchmarks/device_step.py`: what it prints on this machine's processor, where it can run whole at the smallest size."""

import argparse
import dataclasses
import json
import sys

import numpy as np
import pytest

from benchmarks import device_step
from experiments.hackable_transformer_starter_template import PRESETS
from marin.errors import HardwareError

SMALL = ["--sizes", "cpu", "--vocabulary", "256", "--batch", "2", "--rows", "1", "--repetitions", "1"]


def _figures(flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    device_step.peak_flops.cache_clear()
    monkeypatch.setattr(sys, "argv", ["device_step", *SMALL, *flags])
    monkeypatch.setattr("marin.hardware.measure_cpu_peak", lambda: 1e11)
    device_step.main()
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return {line["name"]: line for line in lines}


def test_mfu_is_the_rate_by_the_formula_with_attention_halved(monkeypatch, capsys):
    found = _figures([], monkeypatch, capsys)
    # Two layers of width 128 with MLPs of 384, two heads, 256 tokens of context; FLOPs of one token, forward.
    layer = 6 * 128 * 384 + 8 * 128 * 128 + (4 * 256 * 128 + 3 * 256 * 2) / 2
    assert device_step.flops_per_token(PRESETS["cpu"].model, 256) == 3 * (2 * layer + 2 * 128 * 256)
    expected = found["rate_cpu"]["value"] * 3 * (2 * layer + 2 * 128 * 256) / 1e11
    assert found["mfu_cpu"]["value"] == pytest.approx(expected, rel=1e-3)
    assert 0.5 < found["mfu_cpu"]["context"]["traced"] / found["mfu_cpu"]["value"] < 1.5


def test_a_loss_block_is_taken_for_the_presets_and_said(monkeypatch, capsys):
    assert _figures([], monkeypatch, capsys)["rate_cpu"]["context"]["loss_block"] == 4096
    assert _figures(["--loss-block", "100"], monkeypatch, capsys)["rate_cpu"]["context"]["loss_block"] == 100


def test_fp8_is_compared_with_bf16_in_rate_and_in_loss(monkeypatch, capsys, tmp_path):
    model = dataclasses.replace(PRESETS["cpu"].model, num_layers=1, seq_len=64)  # the comparison looks at no depth
    monkeypatch.setitem(PRESETS, "cpu", dataclasses.replace(PRESETS["cpu"], model=model))
    rates = _figures(["--fp8", "--profile", str(tmp_path)], monkeypatch, capsys)["fp8_speedup_cpu"]
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.xplane.pb")} == {"cpu_bf16", "cpu_fp8"}
    context = rates["context"]
    assert rates["value"] == pytest.approx(context["bf16_step_seconds"] / context["fp8_step_seconds"], rel=0.01)
    assert context["fp8_mfu"] == pytest.approx(context["bf16_mfu"] * rates["value"], rel=0.01)
    assert context["fp8_units"] is False
    loss = _figures(["--fp8", "--loss-steps", "3"], monkeypatch, capsys)["fp8_loss_difference_cpu"]
    assert 0 < abs(loss["value"]) < 0.1
    assert loss["value"] == pytest.approx(loss["context"]["fp8_loss"] - loss["context"]["bf16_loss"], abs=2e-5)


def test_made_text_is_the_same_for_every_program_and_can_be_learned():
    args = argparse.Namespace(vocabulary=50, document_length=None)
    one, other = (device_step.made_batches(PRESETS["cpu"], args) for _ in range(2))
    batches = [next(one) for _ in range(3)]
    assert all((batch.tokens_BT == next(other).tokens_BT).all() for batch in batches)
    pairs = {pair for batch in batches for pair in zip(batch.tokens_BT.ravel(), batch.targets_BT.ravel(), strict=True)}
    assert len(pairs) <= 50 * device_step.SUCCESSORS
    assert np.array_equal(batches[0].tokens_BT[:, 1:], batches[0].targets_BT[:, :-1])


def test_documents_of_a_length_share_rows():
    one = next(device_step.made_batches(PRESETS["cpu"], argparse.Namespace(vocabulary=50, document_length=None)))
    assert not one.segment_ids_BT.any()
    many = next(device_step.made_batches(PRESETS["cpu"], argparse.Namespace(vocabulary=50, document_length=32)))
    counts = many.segment_ids_BT[:, -1] + 1
    assert (many.segment_ids_BT[:, 0] == 0).all()
    assert set(np.diff(many.segment_ids_BT).ravel()) == {0, 1}
    assert 256 / 32 / 2 < counts.mean() < 256 / 32 * 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--profile", "/dev/null/trace"],
            "--profile /dev/null/trace: Not a directory: use a folder that can be written",
        ),
        (["--fp8", "--loss-steps", "3", "--profile", "trace"], "leave out --loss-steps"),
        (["--sizes", "7b"], "no size '7b': use of 130m"),
        (["--sizes", "cpu", "--batch", "0"], "argument --batch: 0 is not a whole number of at least 1"),
        (["--sizes", "cpu", "--repetitions", "-1"], "argument --repetitions: -1 is not a whole number"),
        (
            ["--sizes", "cpu", "--batch", "3", "--rows", "2"],
            "3 rows a step cannot be taken 2 at once: use a divisor of 3",
        ),
        (["--sizes", "cpu", "--loss-steps", "3"], "give --fp8 too"),
        (["--sizes", "cpu", "--loss-block", "0"], "argument --loss-block: 0 is not a whole number of at least 1"),
    ],
)
def test_senseless_flags_are_refused_before_anything_is_measured(flags, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["device_step", *flags])
    with pytest.raises(SystemExit) as refused:
        device_step.main()
    assert refused.value.code == 2 and said in capsys.readouterr().err


def test_a_device_that_is_not_known_is_named_before_anything_is_compiled(monkeypatch):
    def unknown() -> float:
        raise HardwareError("unknown device 'Abacus'")

    monkeypatch.setattr(sys, "argv", ["device_step", *SMALL])
    monkeypatch.setattr(device_step, "peak_flops", unknown)
    monkeypatch.setattr(device_step, "Program", None)
    with pytest.raises(SystemExit, match="error: unknown device 'Abacus'"):
        device_step.main()
