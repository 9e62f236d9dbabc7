"""Which form of a bridged program runs, and why: ``choose`` (README.md of bridge/roll describes the forms)."""
