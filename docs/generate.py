"""Write what the classes say into the files that repeat it: `make generate`.

- `src/fedsps/__init__.pyi`: the exports of the methods
- `README.md` and `docs/methods/README.md`: the table of the methods, with what a round of each costs, measured
- `docs/methods/composition.md`: the table of the parts

Tables stand between `<!-- generated: NAME -->` and `<!-- end -->`. A test compares them with what this script would
write, so none of them is ever written by hand.
"""

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import torch

import fedsps
from fedsps import Algorithm, rules
from fedsps.methods.registry import CATALOGUE, PARTS

ROOT = Path(__file__).parents[1]
STEPS = 3
COSTS = {  # gradients of one client in a round of three steps on its whole data -> in words, by local step
    3: "1",
    5: "2, first step 1",
    7: "2, and the whole data once",
    4: "1, and the whole data once",
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, ["---"] * len(headings), *cells])


def title(kind: type) -> str:
    """The first line of a docstring, without its full stop."""
    return (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")


def costs(algorithm: Algorithm) -> tuple[str, str, str]:
    """Exchanges and gradients of a round, and what a client keeps, measured on two small rounds."""
    torch.manual_seed(0)
    clients = [(torch.randn(6, 2), torch.randint(3, (6,))) for _ in range(2)]
    run = fedsps.train(
        fedsps.LogisticRegression(2, 3), clients, algorithm=algorithm, rounds=2, local_steps=STEPS, batch_size=None
    ).history
    first, later = run["exchanges"].tolist()
    exchanges = str(later) if first == later else f"{later}, first round {first}"
    gradients = COSTS[int(run["gradient_evaluations"].iloc[-1]) // len(clients)]
    sizes = [value.ndim for value in algorithm.client_init(torch.zeros(7)).values()]
    kinds = [f"{sizes.count(ndim)} {word}" for ndim, word in ((0, "number"), (1, "vector")) if ndim in sizes]
    kept = ", ".join(text if text.startswith("1 ") else f"{text}s" for text in kinds)
    return exchanges, gradients, kept or "nothing"


def methods(pages: str) -> str:
    """The table of the methods; `pages` is where their pages are."""
    rows = []
    for name, kind in CATALOGUE.items():
        rows.append([f"[{name}]({pages}{name}.md)", f"`{kind.__name__}`", title(kind), kind.adaptive, *costs(kind())])
    headings = ["name", "class", "what it is", "adaptive", "exchanges", "gradients", "a client keeps"]
    return table(headings, rows)


def short_methods(pages: str) -> str:
    """The methods by family, for the README."""
    families: dict[str, list[str]] = {}
    for name, kind in CATALOGUE.items():
        families.setdefault(kind.family, []).append(f"[{name}]({pages}{name}.md)")
    return table(["family", "methods"], [[family, ", ".join(links)] for family, links in families.items()])


def parts() -> str:
    """The table of the parts."""
    rows = []
    for word, kind in PARTS.items():
        home = "" if getattr(rules, kind.__name__, None) is kind else f"{kind.__module__}."
        own = ", ".join(f"{key}={one.default!r}" for key, one in inspect.signature(kind).parameters.items())
        rows.append([f"`{word}`", kind.slot, f"`{home}{kind.__name__}`", f"`{own}`" if own else "", title(kind)])
    return table(["word", "place", "class", "parameters", "what it is"], rows)


def stub(text: str) -> str:
    """The stub with one line for each method, in alphabetical order of their files."""
    kept = [line for line in text.splitlines() if not re.match(r"from \.methods\.(?!notation)", line)]
    own = [
        f"from .{kind.__module__.removeprefix('fedsps.')} import {kind.__name__} as {kind.__name__}"
        for kind in CATALOGUE.values()
    ]
    return "\n".join(sorted([*kept, *own], key=lambda line: (line.split()[1] != ".", line.split()[1]))) + "\n"


def generated() -> dict[Path, str]:
    """The text of every file that this script writes, as it must be."""
    tables = {
        ROOT / "README.md": {"methods": short_methods("docs/methods/")},
        ROOT / "docs/methods/README.md": {"methods": methods("")},
        ROOT / "docs/methods/composition.md": {"parts": parts()},
    }
    texts = {}
    for path, blocks in tables.items():
        text = path.read_text(encoding="utf-8")
        for name, block in blocks.items():
            mark = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
            if not re.search(mark, text, re.DOTALL):
                raise SystemExit(f"{path} has no place for the table {name}")
            text = re.sub(mark, lambda found, block=block: f"{found[1]}\n{block}\n\n{found[2]}", text, flags=re.DOTALL)
        texts[path] = text
    path = ROOT / "src/fedsps/__init__.pyi"
    texts[path] = stub(path.read_text(encoding="utf-8"))
    return texts


if __name__ == "__main__":
    for path, text in generated().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")  # noqa: T201
