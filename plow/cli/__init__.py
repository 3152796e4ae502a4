"""Command lines: `plowc`, `plowrt`, and what they share.

Belongs here: arguments, progress and output for people and machines. Does not belong here: anything that a library
user would miss when calling the rooms directly.
"""
