"""GPT-Neo: a decoder whose layers see everything before them and a window of it, in turns."""
