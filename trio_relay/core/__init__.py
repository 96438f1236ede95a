"""Decisions without I/O: names, sources, pending calls, definitions, results. Time comes in as an argument."""
