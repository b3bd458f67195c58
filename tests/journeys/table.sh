fedsps data look patients.csv --client-column hospital --target-column ill
fedsps train --data patients.csv --client-column hospital --target-column ill --rounds 60 --metrics auc --validation 0.2 --patience 10 --restore-best
fedsps evaluate runs/*
fedsps predict runs/* new.csv -o predictions.csv
fedsps report runs -o report.html
