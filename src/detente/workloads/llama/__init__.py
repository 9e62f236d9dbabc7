"""Llama: grouped queries, rotary positions, root-mean-square normalisation."""
