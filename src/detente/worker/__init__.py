"""The worker: a job record in, an evidence record out, one framework per process. Standard library and numpy only."""
