"""Pieces that several Flax NNX definitions share."""
