"""Measures how fast a model answers; the last line of standard output is JSON.

    python -m scripts.infer_bench -i sft
    python -m scripts.infer_bench --checkpoint RUN -b 16

TTFT is the time to the first token, TPOT the time between two tokens of a sample. MBU is the share of the memory bandwidth
measured here that reading weights, keys and values takes, which is above 1 where they fit into a processor's cache; MFU the share
of the device's FLOP/s.
"""

import dataclasses
import json
from typing import Annotated

import tyro

from marin import hardware
from marin.errors import ConfigError
from marin.gpt2.command import check_numbers, parse_flags, run_command
from marin.gpt2.opening import ModelFlags, open_model


@dataclasses.dataclass(frozen=True)
class Flags(ModelFlags):
    """Flags of infer_bench, beside those of `ModelFlags`.

    Args:
        batch_size: samples at once.
        prompt_tokens: of the prompt, which all samples share.
        num_tokens: of each answer.
        temperature: 0 takes the likeliest token each time; otherwise top-k 50.
        repetitions: what is reported is the median of so many.
    """

    batch_size: Annotated[int, tyro.conf.arg(aliases=["-b"])] = 1
    prompt_tokens: int = 128
    num_tokens: Annotated[int, tyro.conf.arg(aliases=["-m"])] = 128
    temperature: Annotated[float, tyro.conf.arg(aliases=["-t"])] = 0.0
    repetitions: int = 3

    def __post_init__(self) -> None:
        check_numbers(self, ("batch_size", "prompt_tokens", "num_tokens", "repetitions"))
        # These import JAX, which `--help` does not need.
        from marin.inference import SamplingOptions
        from marin.inference.measure import LEAST_TOKENS

        if self.num_tokens < LEAST_TOKENS:
            raise ConfigError(
                f"`--num-tokens` is {self.num_tokens}: use at least {LEAST_TOKENS}, as those of the first burst and the last are not"
                " counted"
            )
        SamplingOptions(self.num_tokens, temperature=self.temperature)


def main() -> None:
    flags = parse_flags(Flags, __doc__)

    from marin.inference import Engine
    from marin.inference.context import note_beyond_context
    from marin.inference.measure import measure_speed, measured_bandwidth
    from marin.training.compile_cache import use_compile_cache

    use_compile_cache()
    loaded, precision = open_model(flags)
    config = loaded.config
    asked = flags.prompt_tokens + flags.num_tokens
    note_beyond_context("prompt and answer have", asked, config.max_seq_len)
    length = max(config.max_seq_len, asked)
    engine = Engine(loaded.model, loaded.tokenizer, max_length=length, max_rows=flags.batch_size, precision=precision)
    speed = measure_speed(
        engine,
        rows=flags.batch_size,
        prompt_tokens=flags.prompt_tokens,
        new_tokens=flags.num_tokens,
        temperature=flags.temperature,
        repetitions=flags.repetitions,
    )
    bandwidth = measured_bandwidth()
    device, peak = _device(precision.compute)
    context = flags.prompt_tokens + flags.num_tokens // 2
    flops = config.flops_per_token(engine.programs.vocab_size, context) * speed.tokens_per_second
    figures = {
        "model": loaded.name,
        "device": device,
        "dtype": precision.compute,
        "batch_size": speed.rows,
        "prompt_tokens": speed.prompt_tokens,
        "new_tokens": speed.new_tokens,
        "repetitions": speed.repetitions,
        "ttft_ms": round(1e3 * speed.ttft, 2),
        "tpot_ms": round(1e3 * speed.tpot, 3),
        "tokens_per_second": round(speed.tokens_per_second, 1),
        "mbu": round(speed.read_bytes / speed.tpot / bandwidth, 4),
        "mfu": round(flops / peak, 4),
        "measured_bandwidth_gb_s": round(bandwidth / 1e9, 1),
        "peak_tflops": round(peak / 1e12, 3),
    }
    for name in ("ttft_ms", "tpot_ms", "tokens_per_second", "mbu", "mfu"):
        print(f"{name:<18} {figures[name]}")
    print(json.dumps(figures))


def _device(dtype: str) -> tuple[str, float]:
    """The first device's name and FLOP/s."""
    import jax

    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return str(hardware.host_info().get("cpu_model")), hardware.measure_cpu_peak()
    known = hardware.lookup_device(hardware.detect_gpu_name() if device.platform == "gpu" else device.device_kind)
    return known.name, known.peak(dtype)


if __name__ == "__main__":
    run_command(main)
