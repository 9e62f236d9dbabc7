"""The live objects while a step trains copies of them: who reads, writes or changes the module, the optimizer and what
Python says, and what may interrupt. Knows nothing of programs."""
