"""Run the notebooks of the tutorials again and keep what they print and draw: `make notebooks`.

Each runs in an empty folder. The site shows what is kept in the files, so that building it trains nothing; a test runs
the notebooks too, and compares.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
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


if __name__ == "__main__":
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        with TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)
