"""The semantics suite as data: what a bridge from PyTorch to XLA must get right, case by case, for any bridge.

A ``Case`` is a model, a loss and batches, and what to make of the observations. A *subject* (``subjects``) runs a case
and says what it observed; ``torch eager`` is the subject that all others are judged by. ``python -m suite CASE
--subject NAME`` runs one case and prints the outcome as JSON; ``benchmarks/semantics_torchax.py`` runs them all, each
in its own process, and writes the score down.
"""
