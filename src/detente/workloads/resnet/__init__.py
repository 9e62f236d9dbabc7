"""A residual convolutional network: convolution layouts and batch-normalisation buffers."""
