"""How fast an engine answers: time to the first token, time of each further one, and what share of the machine that uses.

Every program is compiled before the clock starts. Tokens are counted while all samples run, from the first step in which
none of them starts to the last in which none of them ends.
"""

import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from marin.errors import ConfigError
from marin.inference.engine import Engine
from marin.inference.options import SamplingOptions
from marin.inference.programs import BURST
from marin.inference.scheduler import Request

LEAST_TOKENS = 3 * BURST


@dataclasses.dataclass(frozen=True)
class Speed:
    """Args:
    ttft: seconds from a request to its first token, for one prompt alone: the median.
    tpot: seconds between two tokens of one sample, the median over bursts.
    processor_tpot: the same of processor time, all threads of this process together.
    tokens_per_second: of all samples together.
    read_bytes: what one token of every sample reads at least: the weights once, and each sample's keys and values.
    """

    rows: int
    prompt_tokens: int
    new_tokens: int
    ttft: float
    tpot: float
    processor_tpot: float
    tokens_per_second: float
    read_bytes: int
    repetitions: int


def measure_speed(
    engine: Engine, *, rows: int, prompt_tokens: int, new_tokens: int, temperature: float = 0.0, repetitions: int = 5
) -> Speed:
    """`rows` samples of a prompt of random tokens; they do not end before they have `new_tokens`.

    Raises:
        ConfigError: too few tokens for a burst in which no sample begins or ends, or no repetition.
    """
    if new_tokens < LEAST_TOKENS or repetitions < 1:
        raise ConfigError(
            f"{repetitions} repetitions of {new_tokens} tokens measure nothing: use at least 1 and {LEAST_TOKENS}, as those of"
            " the first burst and the last are not counted"
        )
    random = np.random.default_rng(0)
    first_token, per_token, of_processors = [], [], []
    options = SamplingOptions(max_tokens=new_tokens, temperature=temperature, top_k=50 if temperature else None)
    for repetition in range(repetitions + 1):  # the first one compiles
        prompt = tuple(random.integers(1, engine.programs.vocab_size, prompt_tokens).tolist())
        scheduler = engine.scheduler(stops=False)
        scheduler.submit(Request(prompt, options, rows))
        start, begun = time.perf_counter(), None
        while begun is None:
            begun = time.perf_counter() if scheduler.take_prompt() else None
        times, processors = [], []
        while not scheduler.is_idle:
            step_start, full = time.perf_counter(), scheduler.num_running == rows
            processors_start = time.process_time()
            events = scheduler.step()
            if full and not any(event.finish_reason for event in events):
                times.append((time.perf_counter() - step_start) / len(events[0].tokens))
                processors.append((time.process_time() - processors_start) / len(events[0].tokens))
        if repetition:
            # Several samples begin together; one prompt alone is timed.
            first_token.append(_first_token(engine, prompt) if rows > 1 else begun - start)
            per_token.extend(times)
            of_processors.extend(processors)
    tpot, processor_tpot = statistics.median(per_token), statistics.median(of_processors)
    length = prompt_tokens + new_tokens // 2
    read = engine.programs.weight_bytes + rows * engine.programs.cache_bytes(length)
    ttft = statistics.median(first_token)
    return Speed(rows, prompt_tokens, new_tokens, ttft, tpot, processor_tpot, rows / tpot, read, repetitions)


def _first_token(engine: Engine, prompt: tuple[int, ...]) -> float:
    scheduler = engine.scheduler(stops=False)
    scheduler.submit(Request(prompt, SamplingOptions(max_tokens=1, temperature=0.0)))
    start = time.perf_counter()
    while not scheduler.take_prompt():
        pass
    return time.perf_counter() - start


def measured_bandwidth() -> float:
    """Bytes a second that a product of a matrix of 250 MB with a vector reads on the first device: the best of five."""
    matrix, vector = jnp.ones((8192, 7629), jnp.float32), jnp.ones((1, 8192), jnp.float32)
    product = jax.jit(lambda v, m: v @ m)
    jax.block_until_ready(product(vector, matrix))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(product(vector, matrix))
        best = min(best, time.perf_counter() - start)
    return matrix.nbytes / best
