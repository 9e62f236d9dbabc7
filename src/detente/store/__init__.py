"""Where sessions live: a spool per session (the truth, standard library only) and a SQLite database over
them."""
