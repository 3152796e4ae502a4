"""The bring-up harness: decides what is green, remembers why, and says what to run next.

Belongs here: the ledger and the state folded from it, source digests, the gate runner and the rules of a verdict, the
guard over protected paths, the orchestrator, prompts, agent drivers, reports, CI and the command line. Does not belong
here: what a stage does or measures (stages/), anything about models, packets or machines (plow/). Imports stages and
plow.errors only; the processes that decide never run code under test.
"""
