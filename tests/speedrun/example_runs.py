"""A run whose figures fit together, to be changed in one place by each test."""

from typing import Any

from marin.speedrun.results import RunInfo, parse_results

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, LENGTH, VOCAB = 64, 192, 2, 4, 2, 128, 1000
BATCH, STEPS, SECONDS, A100 = 8, 50, 20.0, 312e12


def run_json(**changes: Any) -> dict[str, Any]:
    """The `run_info` object of a small Llama on one A100, with top-level changes."""
    tokens = BATCH * STEPS * LENGTH
    head = HIDDEN // HEADS
    block = 6 * HIDDEN * INTERMEDIATE + 2 * HIDDEN * head * (HEADS + 2 * KV_HEADS) + 2 * HIDDEN**2
    block += 4 * LENGTH * HIDDEN + 3 * LENGTH * HEADS
    per_token = LAYERS * block + 2 * HIDDEN * VOCAB
    attention = 2 * HIDDEN**2 + 2 * HIDDEN * KV_HEADS * head
    parameters = LAYERS * (attention + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN) + HIDDEN + 2 * VOCAB * HIDDEN
    run: dict[str, Any] = {
        "schema_version": 1,
        "author": {"name": "Ada Example", "affiliation": "Independent", "url": "https://example.org/ada"},
        "description": "A small Llama.",
        "model_config": {
            "hidden_dim": HIDDEN, "intermediate_dim": INTERMEDIATE, "num_layers": LAYERS, "num_heads": HEADS,
            "num_kv_heads": KV_HEADS, "max_seq_len": LENGTH, "tie_word_embeddings": False,
        },
        "train_config": {"train_batch_size": BATCH, "num_train_steps": STEPS},
        "tokenized_dataset": "tokenized/example",
        "resources": {"accelerator_type": "A100", "gpu_count": 1, "device_flops_override": None},
        "model_size": parameters,
        "total_tokens": tokens,
        "model_flops": 3.0 * per_token * tokens,
        "model_flops_per_token": float(per_token),
        "num_devices": 1,
        "num_chips": 1,
        "device_flops": A100,
        "training_time": SECONDS,
        "training_hardware_flops": SECONDS * A100,
        "eval/paloma/c4_en/bpb": 1.5,
        "run_completion_timestamp": "2026-01-02 03:04:05 UTC",
        "wandb_run_link": None,
    }  # fmt: skip
    return run | changes


def run_info(**changes: Any) -> RunInfo:
    return parse_results(run_json(**changes), "example")[0]
