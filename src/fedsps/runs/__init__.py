"""What was asked, what happened, and where it is written: specs, runs, searches, results, checkpoints.

What lives here turns a spec into a folder with a result and reads it back, one run or many at a time. It imports the
engine and what is below it; it knows files and tables, but no plots and no terminals.

| file | concept |
| --- | --- |
| `task` | which data, split how, and which model |
| `spec` | a run asked for in full: algorithm, task, plan |
| `train` | `fedsps.train`: a model and clients' data in, a result out |
| `run` | `fedsps.run`: a spec in, a cached and resumable run folder out |
| `parallel` | many runs at once |
| `sweep` | runs that differ in numbers alone, in one pass |
| `tune` | the search for parameters |
| `result` | the trained model, its history, and the run folder |
| `checkpoint` | a run in progress, on disk |
| `files` | JSON, locks, digests |
"""
