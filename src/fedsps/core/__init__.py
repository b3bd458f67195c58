"""The mathematics that everything stands on: vectors, addressed randomness, the contract of parts, the algorithm.

What lives here knows tensors and nothing of modules, data sets, engines, files or terminals. It imports nothing of
fedsps but `errors` and `checks`.

| file | concept |
| --- | --- |
| `vectors` | `x [..., d]`: norms, products and means over any leading axes |
| `streams` | every random draw as a function of its address |
| `plan` | what is asked of a run: rounds, local steps, cohort, seed, ... |
| `absences` | which clients are missing in which round |
| `contract` | what a client observes, what an exchange is, what a part may do |
| `kinds` | the six kinds of parts, and the plainest of each |
| `local_training` | tau local steps on a client, one step of the server |
| `algorithm` | a composition of parts |
| `stacking` | algorithms that differ in numbers alone, as one with tensors for parameters |
| `files` | writes that are all or nothing |
| `addresses` | the user's own objects by `file.py:name` |
"""
