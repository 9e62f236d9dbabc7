"""BERT: an encoder of text."""
