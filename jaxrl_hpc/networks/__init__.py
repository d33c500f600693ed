"""flax.linen networks: torsos and heads."""
