"""What README.md shows runs as shown."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_python_blocks_run_and_print_what_they_say(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    for promised in re.findall(r"^# (.+, by .+)$", "\n".join(blocks), re.MULTILINE):
        assert promised in printed


def test_the_two_commands_and_every_named_file_exist():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"\]\(([\w/.]+)\)", readme):
        assert (ROOT / path).exists(), path
