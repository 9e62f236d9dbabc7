"""GPT-2: the train step of a decoder-only language model."""
