"""One source of random numbers for every form of a step: the same bits in JAX and in eager PyTorch."""
