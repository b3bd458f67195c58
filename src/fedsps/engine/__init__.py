"""A round, and what carries it: batches, the loop and stacked engines, sessions of many rounds, evaluation.

What lives here owns the loops over clients and rounds and knows no files, no tables and no terminals. It imports
`fedsps.core`, `fedsps.rules`, `fedsps.model` and `fedsps.data`.

| file | concept |
| --- | --- |
| `setup` | what does not change during a run, and the state that does |
| `batches` | a client's batches of one exchange, behind an oracle that counts |
| `answer` | one client's share of an exchange, and the means over them |
| `round` | the exchanges of one round, in turn |
| `loop`, `stacked` | how answers are collected: one client after another, or all at once |
| `sweep` | many settings of one algorithm at once |
| `ranks` | the processes that torchrun starts for one run, and what happens when one is gone |
| `distributed` | the clients of an exchange shared between ranks |
| `workers` | clients side by side on several cores |
| `trial` | whether the model can take the data, and which engine can take the model |
| `metrics` | measures beside loss and accuracy, by name |
| `now` | what a callback is given after a round |
| `evaluate` | loss and accuracy on clients' and test data |
| `session` | round after round, checked, recorded, saved |
| `history` | the row that a round leaves |
"""
