"""The texts of the correctness battery: plain sentences, lists, code, numbers, other scripts, emoji."""

from __future__ import annotations

PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
    "List three fruits and their colours.",
    "What is 17 plus 25?",
    "Write a Python function that returns the factorial of n.",
    "Translate to French: Good morning, my friend.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "Tell me a joke about a cat.",
    "Summarise: The quick brown fox jumps over the lazy dog. The dog does not react and sleeps on.",
    "What happens when water freezes?",
    "Name the planets of the solar system in order.",
    "Complete the sequence: 2, 4, 8, 16,",
    "Describe a sunny day in the mountains.",
    "What is the difference between a list and a tuple in Python?",
    "Write an e-mail that declines an invitation politely.",
    "日本の首都はどこですか？",
    "Say hello with an emoji 😀 and a wish.",
)
"""Asked as one user turn of a chat where the checkpoint has a chat template."""

CONTINUATIONS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "In 1969, the first humans",
    "To make pancakes, you need flour, milk and",
    "The quick brown fox jumps over the lazy dog. The dog",
    "Water boils at 100 degrees",
    "A compiler is a program that",
    "The planets of the solar system are Mercury, Venus,",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Thank you for your letter of 3 May. I am writing to",
    "The main difference between cats and dogs is",
    "import numpy as np\n\nx = np.",
    "SELECT name, age FROM users WHERE",
    "Die Hauptstadt von Deutschland ist",
    "東京は日本の",
    "<html>\n<head>\n<title>",
    "Roses are red, violets are",
    "Emoji: 😀 is a smile, ❤️ is",
)
"""Continued as plain text where the checkpoint is a base model."""
