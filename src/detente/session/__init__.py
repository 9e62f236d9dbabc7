"""The parent: lays out the matrix, spawns one worker at a time, watches it, spools what it brings back.

It never imports a framework, and between two events it sleeps.
"""
