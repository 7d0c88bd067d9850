"""A 32B shape with QK norm (Qwen2.5's, on Llama 3's vocabulary) on 256 TPU v5p chips: the sharding plan of its training step.

    python -m experiments.marin_32b

See `experiments/marin_8b.py`.
"""

from experiments.llama import llama3_tokenizer_vocab_size
from experiments.sharding_plan import main
from experiments.simple_train_config import SimpleTrainConfig
from marin.models.llama import LlamaConfig
from marin.nn import RmsNormConfig, RotaryConfig
from marin.optim import AdamConfig
from marin.resources import TpuPodConfig

VOCAB_SIZE = llama3_tokenizer_vocab_size

marin_32b = LlamaConfig(
    seq_len=4096,
    hidden_dim=5120,
    intermediate_dim=27648,
    num_layers=64,
    num_heads=40,
    num_kv_heads=8,
    qk_norm=RmsNormConfig(),
    rope=RotaryConfig(theta=500_000),
)

train_config = SimpleTrainConfig(
    TpuPodConfig("v5p-512"),
    train_batch_size=2048,
    num_train_steps=100_000,
    learning_rate=7e-4,
    optimizer_config=AdamConfig(learning_rate=7e-4, weight_decay=0.05, warmup=1000),
    per_device_parallelism=4,
    ema_beta=0.995,
)

if __name__ == "__main__":
    main(marin_32b, VOCAB_SIZE, train_config)
