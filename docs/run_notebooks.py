"""Run the notebooks of the tutorials again and keep what they print and draw: `make notebooks`.

Each runs in an empty folder. The site shows what is kept in the files, so that building it trains nothing; a test runs
the notebooks too, and compares.
"""

import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import torch
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent / "tutorials"
NOT_OURS = ("IProgress not found", "`isinstance(treespec")  # warnings of tqdm without widgets, and inside Lightning


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook as it comes out of a run in a folder.

    Raises:
        CellExecutionError: a cell raised.
    """
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    about = notebook.metadata.copy()
    quiet = ",".join(f"ignore:{text}" for text in NOT_OURS)
    client = NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": str(folder)}})
    client.execute(env=os.environ | {"PYTHONWARNINGS": quiet})
    notebook.metadata = about  # else with the version of this Python
    return notebook


def arithmetic() -> str:
    """Twelve digits of what a small network is trained to here.

    They differ between processors and builds of torch that round sums in another way. Training amplifies that, so that
    a notebook's numbers are the same only where these are.
    """
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(64, 20, generator=generator), torch.randint(3, (64,), generator=generator)
    first, second = torch.randn(20, 32, generator=generator), torch.randn(32, 3, generator=generator)
    for _ in range(100):
        weights = [first.requires_grad_(), second.requires_grad_()]
        loss = torch.nn.functional.cross_entropy((inputs @ first).relu() @ second, targets)
        first, second = (
            (one - 0.1 * gradient).detach()
            for one, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True)
        )
    return hashlib.sha256(first.numpy().tobytes() + second.numpy().tobytes()).hexdigest()[:12]


if __name__ == "__main__":
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            notebook = run(path, Path(folder))
            notebook.metadata["arithmetic"] = arithmetic()
            nbformat.write(notebook, path)
