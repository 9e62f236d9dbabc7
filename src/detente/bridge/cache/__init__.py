"""The persistent cache: a second process neither exports nor compiles what an earlier one has."""
