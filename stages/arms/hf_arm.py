"""Arm: transformers on the same checkpoint. `python -m stages.arms.hf_arm CHECKPOINT float32|bfloat16 THREADS`"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from stages.arms.protocol import serve


class HfArm:
    """Greedy loop with the model's own cache and explicit positions; one sequence after the other."""

    def __init__(self, checkpoint: str, dtype: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        self.request: dict[str, Any] = {}

    @torch.no_grad()
    def prompt(self, ids: list[int]) -> tuple[int, Any]:
        out = self.model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax()), out["past_key_values"] if "past_key_values" in out else out["cache"]

    def prepare(self, request: dict[str, Any]) -> None:
        self.request = request
        if request["what"] == "decode":
            self.state = [self.prompt(ids) for ids in request["prompts"]]

    @torch.no_grad()
    def go(self) -> list[list[int]]:
        if self.request["what"] == "prompt":
            return [[self.prompt(self.request["prompts"][0])[0]]]
        return [self._decode(len(ids), *s) for ids, s in zip(self.request["prompts"], self.state, strict=True)]

    def _decode(self, position: int, token: int, cache: Any) -> list[int]:
        tokens = []
        for i in range(self.request["steps"]):
            out = self.model(
                torch.tensor([[token]]),
                past_key_values=cache,
                use_cache=True,
                position_ids=torch.tensor([[position + i]]),
            )
            token = int(out.logits[0, -1].argmax())
            tokens.append(token)
        return tokens


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(int(sys.argv[3]))
    arm = HfArm(sys.argv[1], sys.argv[2])
    serve(
        arm.prepare,
        arm.go,
        {"arm": f"transformers {sys.argv[2]}", "transformers": transformers.__version__, "torch": torch.__version__},
    )
