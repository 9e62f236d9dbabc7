"""One file per kind of job; each offers ``run(job, events) -> Evidence``."""
