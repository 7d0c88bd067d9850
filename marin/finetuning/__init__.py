"""After pretraining: supervised finetuning on conversations, and reinforcement learning from answers that can be checked."""
