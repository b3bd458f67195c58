"""The paper's theory as code: constants of a problem, bounds of the theorems, and runs that are held against them.

What lives here asks what a problem is like (how smooth, how heterogeneous, where its minimum is) and what the theorems
promise for it. It imports runs, the engine and what is below them; it draws nothing and prints nothing.

| file | concept |
| --- | --- |
| `constants` | what the theorems are about: L, mu, the minimum, the noise, and the settings of a run |
| `bounds` | the theorems: their conditions and their right-hand sides |
| `curvature` | L and mu of a model and its data |
| `optimum` | f* and x* of a convex problem, or that there is none |
| `objective` | f in float64, and how much clients and batches differ at a point |
| `lower_bounds` | whether an algorithm's l* is one |
| `trajectory` | a run with every local iterate |
| `left_sides` | what the theorems and the lemmas bound, measured along a run |
| `quadratics` | problems whose constants are known exactly |
| `logistic` | logistic regression whose minimum is known |
| `counterexamples` | statements of the paper that do not hold as written |
| `analysis` | what is known of a problem, as a table and in words |
| `analyse` | `fedsps.analyse`: a model and clients' data in, an analysis out |
"""
