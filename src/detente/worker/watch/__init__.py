"""Watching one step from outside: what the framework itself saw run, whatever the stack says of it.

One file per framework, each the only place that knows how that framework's profiler names things. A file is imported
only where its framework is loaded already: watching brings no second runtime into a process.
"""
