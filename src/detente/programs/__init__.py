"""Captured programs: read them, count them, tell two apart. Standard library only; no framework, no jaxlib.

``probe.program_probe`` is what a worker calls; ``count.count`` is what the parent calls. See README.md.
"""
