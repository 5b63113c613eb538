"""The examples in Python of README.md and of the guides work: the blocks of a document are run, in order, as one program.

Counts of elements beyond ten million are divided by a hundred, so that this takes seconds. Names of files that an
example takes for granted are replaced by those of the image of the reading tests.
"""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from conftest import FIXTURES, needs_system_calls

TOP = FIXTURES.parents[3]
FILES = {
    "data.erofs": str(FIXTURES / "app.erofs"),
    "/notes.txt": "/etc/os-release",
    "/table.csv": "/usr/share/doc/app/README",
}
# Names and files that the examples take for granted. Processes that an example starts may run the program again, as
# `__mp_main__`, and need `work` only.
PRELUDE = """
import numpy as np, pagefold

def work(part):
    return part * 2

if __name__ == "__main__":
    parts = [1, 2, 3]
    with open("table.bin", "wb") as file:
        file.truncate(8_000_000_000)  # a hole
    np.save("table.npy", np.zeros(1_000_000))
    np.zeros(1_000_000, "u1").tofile("data")
"""


def blocks(text: str) -> list[tuple[int, str]]:
    """The blocks of Python, each with the number of its first line."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


def smaller(code: str) -> str:
    def number(found: re.Match) -> str:
        count = int(found[0].replace("_", ""))
        return str(count // 100 if count > 10_000_000 else count)

    for name, ours in FILES.items():
        code = code.replace(name, ours)
    return re.sub(r"\b\d+(?:_\d{3})+\b", number, code)


@needs_system_calls
@pytest.mark.parametrize("document", ["README.md", "docs/python.md", "crates/python/README.md"])
def test_examples_work(document, tmp_path):
    found = blocks((TOP / document).read_text())
    assert found, "the document has no examples"
    program = [PRELUDE]
    for line, code in found:
        if "pandas." in code:
            if find_spec("pandas") is None or find_spec("fsspec") is None:
                continue
            program.append("    import pandas")
        # Errors name the line of the document.
        program.append(f"    exec(compile({chr(10) * (line - 1) + smaller(code)!r}, {document!r}, 'exec'))")
    script = tmp_path / "examples.py"
    script.write_text("\n".join(program))
    result = subprocess.run([sys.executable, "-P", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
