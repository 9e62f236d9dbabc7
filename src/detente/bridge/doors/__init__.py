"""What users call: ``compile``, ``check``, ``functional``, ``extend``, and a region of a module."""
