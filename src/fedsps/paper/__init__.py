"""The paper, re-run: pages of figures, tables and claims, and the verdicts on them.

What lives here says what to run for each figure of the paper, draws it and judges the claims, as pure functions of
results. It imports `fedsps.report` and what is below it; it knows no terminal.

| file | concept |
| --- | --- |
| `page` | what a page is made of: panels, lines, records, claims, verdicts |
| `evidence` | the rule that makes a verdict of numbers |
| `claims` | how a claim is written, and comparisons that several make |
| `settings`, `figures` | what several pages share |
| `theory_runs` | what the page `theory` runs |
| `execute` | search and train what the panels ask for |
| `reproduce` | `fedsps.reproduce`: pages in, files and verdicts out |
| `stored` | a page read back from its tables, to be judged again |
| `document` | the Markdown document of all pages |
| `pages/` | one file a page |
"""
