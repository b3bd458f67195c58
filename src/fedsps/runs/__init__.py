"""What was asked, what happened, and where it is written: specs, runs, searches, results, checkpoints.

What lives here turns a spec into a folder with a result and reads it back, one run or many at a time. It imports the
engine and what is below it; it knows files and tables, but no plots and no terminals, a progress bar aside.

| file | concept |
| --- | --- |
| `task` | which data, split how, and which model |
| `spec` | a run asked for in full: algorithm, task, plan |
| `train` | `fedsps.train`: a model and clients' data in, a result out |
| `run` | `fedsps.run`: a spec in, a cached and resumable run folder out |
| `parallel` | many runs at once |
| `failures` | a run of several that fails, while the others go on |
| `sweep` | runs that differ in numbers alone, in one pass |
| `space` | what is searched: parameters, their values, the sampler |
| `tune` | the search for parameters |
| `storage` | the data base of a search's trials |
| `tuning` | what a search found: scores and the winner |
| `result` | the trained model, its history, and the run folder |
| `callbacks` | ready ones: a progress bar, logging, TensorBoard, MLflow |
| `personalise` | each client's own model, fine-tuned from the common one |
| `scores` | a run's losses, metrics and stepsizes by client |
| `predict` | what a trained model says of new samples |
| `train_all` | several algorithms and seeds on data of one's own |
| `checkpoint` | a run in progress, on disk |
| `files` | JSON, locks, digests |
"""
