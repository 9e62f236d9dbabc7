"""ResNet-50: bottlenecks, and batch normalisation with its buffers."""
