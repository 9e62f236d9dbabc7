"""Pure functions from a neutral graph to a better one. They import torch where they compute, never jax."""
