"""The coverage run of the bridge: every architecture of transformers' auto mappings, shrunk by one rule.

``architectures`` lists them, ``shrink`` makes them small, ``inputs`` makes a batch, ``build`` finds the first
shrink that trains in eager torch, ``attempt`` runs the bridge against eager, ``serve`` gives each its own
process, ``table`` writes the page. ``python -m zoo`` runs it; an interrupted run goes on where it stopped.
"""
