"""Llama shapes from nano to 1.9 billion parameters, as the public speedruns name them."""

from marin.models.llama import LlamaConfig

llama3_tokenizer = "meta-llama/Meta-Llama-3.1-8B"
llama3_tokenizer_vocab_size = 128_256


def _llama(seq_len: int, hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int) -> LlamaConfig:
    return LlamaConfig(
        seq_len=seq_len,
        hidden_dim=hidden,
        intermediate_dim=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        num_layers=layers,
    )


llama_nano = _llama(512, 32, 128, 2, 2, 2)
llama_30m = _llama(1024, 128, 448, 2, 2, 4)
llama_50m = _llama(1024, 192, 448, 2, 2, 4)
llama_75m = _llama(1024, 256, 896, 4, 4, 8)
llama_150m = _llama(1024, 512, 1792, 8, 8, 6)
llama_300m = _llama(1024, 768, 2688, 12, 12, 12)
llama_600m = _llama(1024, 1024, 3584, 16, 8, 24)
llama_1_4b = _llama(4096, 2048, 7168, 16, 8, 16)
llama_1_9b = _llama(4096, 2048, 7168, 16, 8, 24)
