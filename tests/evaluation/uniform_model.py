"""A model that has learned nothing."""

import equinox as eqx
import jax.numpy as jnp


class Uniform(eqx.Module):
    """Gives every token the same probability."""

    vocab_size: int = eqx.field(static=True)

    @property
    def lm_head_DV(self):
        return jnp.zeros((2, self.vocab_size), jnp.float32)

    @property
    def logit_softcap(self):
        return None

    def activations(self, tokens_BT, segment_ids_BT):
        return jnp.ones((*tokens_BT.shape, 2), jnp.float32)
