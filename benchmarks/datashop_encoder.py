"""How fast an encoder scores documents: documents/s, tokens/s, and the share of the device's peak that its FLOPs are.

    python -m benchmarks.datashop_encoder                     # on a processor a small encoder, a minute
    python -m benchmarks.datashop_encoder --size base         # 110 million parameters, what an accelerator gets by default

Prints one JSON line a figure: name, value, unit, n (repetitions), context. `device` is the compiled program alone on batches of
full rows; `end_to_end` is texts to scores through the classifier, tokenizer and padding included, so its tokens are those of
the texts and no padding. Weights are random, which changes no shape; the program is compiled before the clock starts. The
peak is that of the device catalogue, on a processor what matrix products measure. The aim is 700,000 tokens/s on an H200
at length 512.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks.data import print_figure
from marin import hardware
from marin.data.documents import Document, write_documents
from marin.data.tokenizer.for_encoders import train_encoder_tokenizer
from marin.datashop.encoder_scoring import EncoderClassifier, RegressionHead, TextEncoder, vectors_program
from marin.errors import HardwareError
from marin.flags import HelpFormatter
from marin.models.encoder import EncoderModelConfig
from marin.nn import NtkRotaryConfig

SIZES = {
    "small": EncoderModelConfig(hidden_dim=256, intermediate_dim=1024, num_layers=4, num_heads=4),
    "base": EncoderModelConfig(),
    "gte-base": EncoderModelConfig(rope=NtkRotaryConfig(), gated=True, num_token_types=0, max_seq_len=8192),
}
_LETTERS = np.array(list("etaoinshrdlucmfw"))


def made_texts(count: int, words: int) -> list[str]:
    """Texts of random words of 2 to 9 letters."""
    generator = np.random.default_rng(0)
    lexicon = ["".join(generator.choice(_LETTERS, size)) for size in generator.integers(2, 10, 5000)]
    return [" ".join(lexicon[word] for word in generator.zipf(1.3, words) % 5000) for _ in range(count)]


def peak_flops(dtype: str) -> float | None:
    """Peak FLOP/s of the device that computes; None where the catalogue does not know it."""
    if jax.default_backend() == "cpu":
        return hardware.measure_cpu_peak()
    try:
        return hardware.lookup_device(jax.local_devices()[0].device_kind).peak(dtype)
    except HardwareError:
        return None


def main() -> None:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="small" if on_cpu else "base")
    parser.add_argument("--length", type=int, default=512, help="tokens a text is cut to")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32" if on_cpu else "bf16")
    parser.add_argument("--texts", type=int, default=64 if on_cpu else 16_384)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    config = SIZES[args.size]
    texts = made_texts(args.texts, args.length)
    with tempfile.TemporaryDirectory() as scratch:
        documents = str(Path(scratch) / "texts.jsonl.zst")
        write_documents(
            documents, (Document(str(index), text, "made") for index, text in enumerate(made_texts(200, 512)))
        )
        tokenizer = train_encoder_tokenizer(documents, 1000, scratch, 10_000_000)
    encoder = TextEncoder.of(config.build(30_528, key=jax.random.key(0)), tokenizer, "cls", args.length, args.dtype)
    classifier = EncoderClassifier(encoder, RegressionHead(np.ones(encoder.width), 0.0))
    num_tokens = sum(len(ids) for ids in encoder.encode(texts))
    peak = peak_flops(args.dtype)
    context = {
        "encoder": args.size,
        "parameters": config.total_trainable_params(30_528),
        "length": args.length,
        "dtype": args.dtype,
        "device": jax.local_devices()[0].device_kind,
        "peak_tflops": None if peak is None else round(peak / 1e12, 3),
        "load": os.getloadavg()[0],
    }

    def show(name: str, value: float, unit: str, **more: object) -> None:
        print_figure(name, value, unit, args.repetitions, **context, **more)

    rows = encoder.rows_of(args.length)
    run = vectors_program(encoder.static, encoder.pooling)
    tokens = np.random.default_rng(0).integers(5, 1000, (rows, args.length)).astype(np.int32)
    lengths = np.full(rows, args.length, np.int32)
    batches = max(1, min(32, args.texts // rows))
    jax.block_until_ready(run(encoder.arrays, tokens, lengths))
    device, whole = [], []
    classifier.scores(texts)
    for _ in range(args.repetitions):  # interleaved, so that what else the machine does falls on both
        started = time.perf_counter()
        jax.block_until_ready([run(encoder.arrays, tokens, lengths) for _ in range(batches)])
        device.append(time.perf_counter() - started)
        started = time.perf_counter()
        classifier.scores(texts)
        whole.append(time.perf_counter() - started)
    seconds = statistics.median(device)
    rate = batches * rows * args.length / seconds
    show("encoder_device_tokens", rate, "tokens/s", rows=rows, batches=batches)
    if peak is not None:
        show("encoder_device_mfu", rate * config.flops_per_token(args.length) / peak, "share of peak", rows=rows)
    seconds = statistics.median(whole)
    show("encoder_end_to_end_tokens", num_tokens / seconds, "tokens/s", texts=args.texts, tokens=num_tokens)
    show("encoder_end_to_end_documents", args.texts / seconds, "documents/s", texts=args.texts)


if __name__ == "__main__":
    main()
