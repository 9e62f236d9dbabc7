"""Pieces that several torch definitions share."""
