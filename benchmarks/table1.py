"""The searches of the paper's table 1 for logistic regression, at paper scale, on all cores: seconds.

FEDSPS_DATA=data python benchmarks/table1.py [--scale paper] [--write]

1 585 settings of FedAvg, FedAMS, FedAdam and MIME on MNIST, w8a and the other LIBSVM sets, 500 rounds each, as
`fedsps reproduce tuning --scale paper` searches them; nothing is cached. LeNet's searches are left out.
"""

import tempfile
import time
from pathlib import Path

from page import Section, options

from fedsps.engine.workers import cores
from fedsps.paper.execute import searched
from fedsps.paper.page import Job, Tuned
from fedsps.paper.pages import tuning


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--scale", default="paper", choices=("smoke", "laptop", "paper"))
    asked = parser.parse_args()
    section, total, trials = Section("table1"), 0.0, 0
    section.line(f"{'search':32}{'settings':>9}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        job = Job("table 1", asked.scale, 1, Path(folder), cores())
        for panel in tuning.panels(asked.scale):
            for line in panel.lines:
                if isinstance(line.algorithm, Tuned) and not panel.name.startswith("LeNet"):
                    began = time.perf_counter()
                    found = searched(panel, line, line.algorithm, job).table
                    seconds = time.perf_counter() - began
                    total, trials = total + seconds, trials + len(found)
                    section.line(f"{panel.name + ', ' + line.label:32}{len(found):9}{seconds:9.1f}")
    section.line(f"{'all, on ' + str(cores()) + ' cores':32}{trials:9}{total:9.1f}")
    if asked.write:
        section.write()


if __name__ == "__main__":
    main()
