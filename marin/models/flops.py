"""FLOPs of one token's forward pass, by the formula that published speedrun results use.

Attention is counted in full, not halved for causality, and the head width is `hidden_dim / num_heads` even where
`head_dim` is set; both as in the published figures, which this reproduces to the digit. Training costs three times the
forward pass. What the traced program really does is counted beside it (`marin.training.traced_flops`).
"""


def lm_flops_per_token(
    *,
    hidden_dim: int,
    intermediate_dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    context_length: int,
    vocab_size: int,
    glu: bool,
) -> float:
    """Forward FLOPs for one token of a decoder of `num_layers` equal blocks and one language-model head."""
    head_dim = hidden_dim / num_heads
    mlp = 2 * (3 if glu else 2) * hidden_dim * intermediate_dim
    projections = 2 * hidden_dim * (num_heads * head_dim + 2 * num_kv_heads * head_dim) + 2 * hidden_dim * hidden_dim
    scores = 2 * context_length * num_heads * head_dim
    softmax = 3 * context_length * num_heads
    values = 2 * context_length * num_heads * head_dim
    head = 2 * hidden_dim * vocab_size
    return num_layers * (mlp + projections + scores + softmax + values) + head
