"""From tiles to a program: workers, dependencies, counters, thresholds and arena addresses.

Belongs here: liveness and the arena (`arena`), the realisation of every dependency as program order or a counter wait
(`dependencies`), the assembly of a program (`program`) and its simulation on a machine (`simulate`). Does not belong
here: what an operator means or how it is cut.
"""
