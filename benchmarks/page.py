"""The page docs/benchmarks.md: each benchmark writes its own section, between two marks.

<!-- measured: NAME -->
the machine, the versions, and what the command printed
<!-- end -->
"""

import argparse
import os
import platform
import re
from pathlib import Path

import torch

import fedsps

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser that knows `--write`; its help begins with the first line of a script's docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    return parser


def machine() -> str:
    """The processor, the memory, and the versions that the numbers depend on."""
    found = re.search(r"^model name\s*:\s*(.*)$", read("/proc/cpuinfo"), re.MULTILINE)
    kilobytes = re.search(r"^MemTotal:\s*(\d+)", read("/proc/meminfo"), re.MULTILINE)
    memory = f", {int(kilobytes[1]) / 2**20:.0f} GiB" if kilobytes else ""
    return (
        f"{found[1] if found else platform.machine()}, {os.cpu_count()} cores{memory}; "
        f"Python {platform.python_version()}, torch {torch.__version__}, fedsps {fedsps.__version__}"
    )


def read(path: str) -> str:
    """The text of a file, or nothing where there is no such file (other systems than Linux)."""
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


def replaced(text: str, name: str, block: str) -> str:
    """A page's text with another block in one section; the rest stays as it is."""
    mark = rf"(<!-- measured: {re.escape(name)} -->\n).*?(<!-- end -->)"
    text, times = re.subn(mark, lambda found: f"{found[1]}{block}\n{found[2]}", text, flags=re.DOTALL)
    if times != 1:
        raise SystemExit(f"the page must have one section <!-- measured: {name} --> ... <!-- end -->; found {times}")
    return text


class Section:
    """What a benchmark prints, kept for its section of the page.

    Args:
        name: of the section.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.line(machine())

    def line(self, text: str) -> None:
        """Print a line, and keep it."""
        print(text, flush=True)
        self.lines.append(text.rstrip())

    def write(self, page: Path = PAGE) -> None:
        """Replace the section by all lines."""
        block = "\n".join(["```text", *self.lines, "```"])
        page.write_text(replaced(page.read_text(encoding="utf-8"), self.name, block), encoding="utf-8")
        print(f"written: {page.name}, section {self.name}")
