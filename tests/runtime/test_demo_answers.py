"""The real demo checkpoint through both interpreters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import tiny_bundle

from plow.compile import Options
from plow.runtime.llm import LLM
from plow.runtime.sampler import SamplingParams

pytestmark = pytest.mark.real
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_smollm2_answers_and_the_numpy_interpreter_agrees(
    demo_smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bundle = tiny_bundle(demo_smollm2, tmp_path_factory, Options(max_ctx=256, max_batch=4, rows=(1, 4, 64)))
    fast, oracle = (LLM(bundle, backend, allow_uncertified=True) for backend in ("cpu", "numpy"))
    prompt = fast.encode_chat(QUESTION)
    answer = fast.generate([prompt], max_tokens=16)[0]
    assert "Paris" in answer.text and answer.finish == "stop"
    assert oracle.generate([prompt], max_tokens=3)[0].token_ids == answer.token_ids[:3]
    fast.generate([prompt], max_tokens=3)
    np.testing.assert_allclose(fast.backend.logits(0, 1), oracle.backend.logits(0, 1), atol=2e-3)
    sampled = [
        fast.generate([prompt], SamplingParams(0.8, 40, 0.95, 0.01, seed), 24)[0].token_ids for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    fast.close()
