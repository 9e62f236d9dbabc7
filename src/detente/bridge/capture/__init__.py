"""Capture: a torch module, its loss and a batch become a neutral ``Graph``. Imports torch, never jax."""
