"""The arithmetic rung of verification: whether the figures of one run fit together, counted again from what it states."""
