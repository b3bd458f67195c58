"""What results look like: the table of a comparison, figures, and the HTML page of many runs.

What lives here makes tables and pictures out of results. It imports `fedsps.runs` and what is below it, knows no
terminal, and is the only place that imports matplotlib (`plot`) and plotly (`page`).

| file | concept |
| --- | --- |
| `compare` | `fedsps.compare`: several algorithms on one task, as a table and a figure |
| `plot` | figures on paper, by matplotlib |
| `collect` | what a report is about: the folders that hold runs and pages |
| `figures` | which curves a report draws, and their points |
| `tables` | the tables of a report |
| `page` | the HTML file itself |
| `format` | titles and numbers in words |
"""
