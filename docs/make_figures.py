"""Run the commands of the method pages again and write their tables and figures into the pages.

.venv/bin/python docs/make_figures.py            every page
.venv/bin/python docs/make_figures.py mime       some pages

What stands between `<!-- begin: NAME -->` and `<!-- end -->` in docs/methods/NAME.md is written here: the command, the
table of what it printed, and the link to its figure. Finished runs are taken from the folder `runs`; remove it to
train everything again.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).parent
COLUMNS = {
    "algorithm": "algorithm",
    "final_train_loss": "final train loss",
    "best_test_accuracy": "best test accuracy",
    "rounds_to_target": "rounds to target",
    "stepsize_mean": "mean stepsize",
}


def blocks_of(name: str) -> re.Pattern[str]:
    """What is written here of a page."""
    return re.compile(rf"<!-- begin: {name} -->\n(.*?)<!-- end -->", re.DOTALL)


def pages() -> list[str]:
    """The names of the pages that have such a block."""
    found = (DOCS / "methods").glob("*.md")
    return sorted(page.stem for page in found if blocks_of(page.stem).search(page.read_text(encoding="utf-8")))


def compared(name: str) -> list[str]:
    """What a page compares: the words at the end of its command."""
    (text,) = blocks_of(name).findall((DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8"))
    (command,) = re.findall(rf"--figure docs/images/methods/{name}.png (.*)$", text, re.MULTILINE)
    return shlex.split(command)


def block(name: str) -> str:
    """The command of a page, its table and its figure, in Markdown."""
    image = f"images/methods/{name}.png"
    command = f"fedsps compare --rounds 100 --figure docs/{image} {' '.join(compared(name))}"
    (DOCS / image).parent.mkdir(parents=True, exist_ok=True)
    fedsps = Path(sys.executable).with_name("fedsps")
    words = [str(fedsps), *shlex.split(command)[1:], "--json"]
    found = json.loads(subprocess.run(words, cwd=DOCS.parent, check=True, stdout=subprocess.PIPE, text=True).stdout)
    shrink(DOCS / image)
    lines = [COLUMNS.values(), ["---", *["---:"] * (len(COLUMNS) - 1)], *map(cells, found["rows"])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    target = f"Target: a training loss of {found['target_loss']:.4g}, the best final one of these runs times 1.1."
    return f"```sh\n{command}\n```\n\n{table}\n\n{target}\n\n![Loss, accuracy and stepsizes of {name}](../{image})"


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table; a diverged run has no loss, and a target that was not reached no round."""
    absent = {"final_train_loss": "diverged" if row["diverged"] else "-", "rounds_to_target": "never"}
    shown = ((name, row[name]) for name in COLUMNS)
    return [f"{v:.4g}" if isinstance(v, float) else v or absent.get(name, "-") for name, v in shown]


def shrink(path: Path) -> None:
    """Write a figure with a palette of 128 colours: it looks the same and takes a third of the bytes."""
    few = Image.open(path).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def refresh(name: str) -> None:
    """Replace the block of one page."""
    page = DOCS / "methods" / f"{name}.md"
    pattern = rf"(?<=<!-- begin: {name} -->\n).*?(?=<!-- end -->)"
    text, times = re.subn(pattern, lambda _: block(name) + "\n", page.read_text(), flags=re.DOTALL)
    if times != 1:
        raise SystemExit(f"{page} must hold one block <!-- begin: {name} --> ... <!-- end -->; found {times}")
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:] or pages():
        refresh(name)
