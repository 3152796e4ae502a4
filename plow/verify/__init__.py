"""Proof: payloads of the shipped packet bytes, Lean runs that certify them, certificates bound to the packet digest.

Belongs here: finding and running Lean (`lean_run`), the compiled library (`library`), one payload file a checkpoint
(`payload_d`), certificates (`certificate`), the audit of the Lean sources (`audit`) and the planted faults that show
the checks have power (`selftest`). Does not belong here: the proofs (`lean/`), anything that decides how a program is
built, any verdict taken by Python where Lean's kernel can take it.

    python -m plow.verify certify BUNDLE | check BUNDLE | audit | self-test | payload BUNDLE --program 0
"""

from plow.verify.certificate import Certificate, certify, check_bundle

__all__ = ["Certificate", "certify", "check_bundle"]
