"""One matrix product, forward and the gradient of both operands."""
