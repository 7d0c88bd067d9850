"""A model whose activations are a Llama's with something added: by tests that say what."""

from typing import Any

import equinox as eqx


class OnLlama(eqx.Module):
    """Has a Llama's head; `activations` is a subclass's."""

    llama: Any

    @property
    def lm_head_DV(self) -> Any:
        return self.llama.lm_head_DV

    @property
    def logit_softcap(self) -> Any:
        return None
