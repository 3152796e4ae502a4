"""Tuning: paired A/B measurements, their verdicts, and the database whose winners the compiler reads back.

Belongs here: statistics of comparisons (`ab`), tune records (`database`), turning winners into compile options
(`choices`), measured results for people (`perfdata`). Does not belong here: what is worth trying (stage 4), clocks
inside candidate code.
"""
