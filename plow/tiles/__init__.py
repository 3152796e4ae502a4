"""From graph nodes to tiles: the packet form of every operator and how it is cut for the workers.

Belongs here: which opcode realises an operator, its operands and dims (`forms`), weight regions with their layout, and
the cut of a form into balanced tiles (`partition`). Does not belong here: fusion (the graph already says what is
fused), counters, addresses.
"""
