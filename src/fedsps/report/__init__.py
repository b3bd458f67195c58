"""What results look like: the table of a comparison, figures, and the HTML page of many runs.

What lives here makes tables and pictures out of results. It imports `fedsps.runs` and what is below it, knows no
terminal, and is the only place that imports matplotlib (`plot`) and plotly (`page`).
"""
