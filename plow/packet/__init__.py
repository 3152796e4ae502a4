"""The packet ABI: one definition from which everything else is generated or derived.

Belongs here: the opcode table (`abi`), the numpy dtype, encoder and decoder (`codec`), the C header (`cheader`), the
disassembler, the memory effects of a packet (`effects`), weight layouts (`layouts`) and the `.pkt` container with its
digests. Does not belong here: graphs, scheduling decisions, execution.
"""
