"""What every command shares."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from plow.cli.common import new_app, reporting
app = new_app("prints")
@app.command()
def main(loud: bool = False) -> None:
    with reporting():
        for i in range(100000):
            print(i)
app()
"""


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, "--loud"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    words = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() != 0 and "internal error" not in words and "Traceback" not in words
