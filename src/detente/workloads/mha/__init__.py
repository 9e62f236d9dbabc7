"""Causal multi-head self-attention, projections included."""
