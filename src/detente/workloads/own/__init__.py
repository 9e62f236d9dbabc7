"""The user's own model: ``path/to/file.py:function``, or ``hf:CONFIG``."""
