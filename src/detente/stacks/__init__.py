"""The stacks: one Protocol, one file per stack, one table that names them without importing a framework."""
