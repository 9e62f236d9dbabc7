"""The user's own ``torch.optim`` optimizer, traced once and applied in JAX (see README.md)."""
