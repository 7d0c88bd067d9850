"""How a step is compiled: measured where there is a choice, once a run, and kept by a resumed one."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import pytest

from marin import hardware
from marin.errors import ConfigError, HardwareError
from marin.models import LlamaConfig
from marin.nn import Precision
from marin.training import checkpoint as checkpoints
from marin.training import programs
from marin.training.loop import train_lm
from marin.training.placement import parameter_shapes
from marin.training.programs import Compilation, choose_compilation, cpu_candidates, fastest, seconds_of

F32, BF16 = Compilation(Precision("f32")), Compilation(Precision("bf16"))
WIDE = LlamaConfig(seq_len=32, hidden_dim=128, intermediate_dim=128, num_layers=1, num_heads=4, num_kv_heads=4)
ONEDNN = Compilation(Precision("bf16"), {"xla_cpu_use_onednn": True})


@pytest.fixture
def modern(monkeypatch):
    """A processor and a jaxlib that are fast in bfloat16."""
    monkeypatch.setattr(hardware, "has_bf16_instructions", lambda: True)
    monkeypatch.setattr(programs.jaxlib, "__version__", "0.12.0")


def _info(config) -> dict:
    return json.loads((Path(config.output_path) / "run.json").read_text())


def test_candidates_of_an_older_processor_are_float32_alone(monkeypatch):
    monkeypatch.setattr(hardware, "has_bf16_instructions", lambda: False)
    assert [str(way) for way in cpu_candidates(None)] == ["f32"]


def test_candidates_of_a_processor_with_bf16_are_all_ways(modern):
    assert [way.precision.compute for way in cpu_candidates(None)] == ["f32", "bf16", "bf16"]
    assert [bool(way.options) for way in cpu_candidates(None)] == [False, False, True]


def test_candidates_keep_to_the_format_that_is_asked_for(modern):
    assert {way.precision.compute for way in cpu_candidates(Precision("bf16"))} == {"bf16"}
    assert {way.precision.compute for way in cpu_candidates(Precision("f32"))} == {"f32"}


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"f32": 1.0, "bf16": 2.0, "bf16 use_onednn": 0.5}, ONEDNN),
        ({"f32": 1.0, "bf16": 0.95, "bf16 use_onednn": 0.95}, F32),  # not by a tenth
        ({"f32": 1.0, "bf16": 0.6, "bf16 use_onednn": math.inf}, BF16),
    ],
)
def test_fastest_way_wins_by_a_clear_margin(seconds, chosen):
    best = fastest([F32, BF16, ONEDNN], lambda way: seconds[str(way)])
    assert (best.precision, best.options) == (chosen.precision, chosen.options)
    assert best.seconds == seconds


def test_measuring_a_way_takes_time_and_options_that_the_compiler_refuses_take_forever():
    assert 0 < seconds_of(F32, 32) < math.inf
    assert seconds_of(Compilation(Precision("f32"), {"xla_cpu_no_such_option": True}), 32) == math.inf


def test_compilation_survives_run_json():
    way = dataclasses.replace(ONEDNN, precision=Precision("bf16", "int8"), seconds={"f32": 0.5})
    assert Compilation.from_json(json.loads(json.dumps(way.as_json()))) == way


def test_run_that_is_resumed_is_compiled_as_it_began(make_config, modern, monkeypatch):
    config = make_config(num_train_steps=4, steps_per_export=2, precision=None)
    monkeypatch.setattr(programs, "seconds_of", lambda way, width: {"bf16": 0.1}.get(str(way), 1.0))
    train_lm(config)
    assert (_info(config)["precision"], _info(config)["compiler_options"]) == ("bf16", {})
    kept = checkpoints.list_checkpoints(Path(config.output_path) / "checkpoints")
    for checkpoint in kept[1:]:
        for file in sorted(checkpoint.path.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        checkpoint.path.rmdir()

    def measured_again(way, width):
        raise AssertionError("a resumed run measured again")

    monkeypatch.setattr(programs, "seconds_of", measured_again)
    state = train_lm(config)
    assert int(state.step) == 4


def test_fp8_on_a_device_without_it_is_the_compute_format_and_says_so(make_config, capsys):
    config = make_config(precision=Precision("f32", "fp8"), model=WIDE)
    shapes = parameter_shapes(config.model, config.vocab_size)
    assert choose_compilation(config, shapes).precision == Precision("f32")
    assert "FP8 products are asked for and cpu has no matrix units" in capsys.readouterr().err
    config = make_config(precision=Precision("f32", "fp8"))
    assert choose_compilation(config, parameter_shapes(config.model, config.vocab_size)).precision == Precision("f32")
    assert capsys.readouterr().err.count("note:") == 1  # of the two reasons one is enough


def test_fp8_on_a_gpu_is_left_to_cublas_which_takes_seconds_to_compile():
    """XLA's own kernels are tried for half a minute a product; those of other formats for a second, and they are faster."""
    fp8, bf16 = Precision("bf16", "fp8"), Precision("bf16")
    assert programs.on_accelerator(fp8, "gpu").options == {"xla_gpu_enable_triton_gemm": False}
    assert programs.on_accelerator(bf16, "gpu").options == programs.on_accelerator(fp8, "tpu").options == {}
    way = programs.on_accelerator(fp8, "gpu")
    assert programs.Compilation.from_json(way.as_json()) == way  # a run that goes on is compiled as it began


@pytest.mark.slow
def test_int8_trains_nearly_as_float32_does(make_config):
    runs = {name: make_config(name, num_train_steps=15, model=WIDE, int8=name == "int8") for name in ("f32", "int8")}
    losses = {}
    for name, config in runs.items():
        train_lm(config)
        lines = (Path(config.output_path) / "metrics.jsonl").read_text().splitlines()
        losses[name] = [
            json.loads(line)["loss"] for line in lines if '"event": "step"' in line or '"event":"step"' in line
        ]
    assert _info(runs["int8"])["products"] == "int8"
    assert losses["int8"] != losses["f32"]
    assert losses["int8"][-1] == pytest.approx(losses["f32"][-1], rel=0.02)
    assert losses["int8"][-1] < losses["int8"][0] - 0.5


def test_int8_beside_fp8_is_refused(make_config):
    with pytest.raises(ConfigError, match="`int8` is True and `precision.products` is 'fp8'"):
        make_config(int8=True, precision=Precision("bf16", "fp8"))


def test_int8_for_a_model_of_small_matrices_says_that_it_does_nothing(make_config, capsys):
    config = make_config(num_train_steps=1, int8=True)
    train_lm(config)
    assert "int8 products are asked for and no `Linear`" in capsys.readouterr().err
    assert _info(config)["products"] is None  # what stands there is what ran


def test_compiler_option_that_this_version_does_not_know_is_named():
    way = Compilation(Precision("f32"), {"xla_cpu_option_of_tomorrow": True})
    with pytest.raises(HardwareError, match="xla_cpu_option_of_tomorrow, which jaxlib"):
        programs.compile_traced(programs.trace_program(lambda state: state + 1.0, jax.numpy.zeros(3)), way)
