"""A captured graph as compiled functions: loss, gradients, and the whole step."""
