"""Write `patients.csv` and `new.csv`: made-up patients of three hospitals, as such tables are in life.

An id, words, gaps, numbers of very different size, and a label in words; `new.csv` has ten rows without the label.
"""

import numpy as np
import pandas as pd

random = np.random.default_rng(0)
rows = 600
age = random.integers(20, 90, rows).astype(float)
smoker = random.choice(["never", "former", "daily"], rows)
pressure = random.normal(120, 15, rows).round(1)
score = (age - 55) / 15 + 1.5 * (smoker == "daily") + (pressure - 120) / 20 + random.normal(0, 0.7, rows)

patients = pd.DataFrame(
    {
        "patient_id": random.permutation(rows) + 1000,
        "hospital": random.choice(["north", "south", "east"], rows, p=[0.5, 0.3, 0.2]),
        "age": age,
        "sex": random.choice(["f", "m"], rows),
        "smoker": smoker,
        "pressure": pressure,
        "income": random.lognormal(10, 0.5, rows).round(2),
        "ill": np.where(score > 0.3, "yes", "no"),
    }
)
patients.loc[random.random(rows) < 0.1, "pressure"] = np.nan
patients.loc[random.random(rows) < 0.05, "smoker"] = None
patients.to_csv("patients.csv", index=False)
patients.sample(10, random_state=1).drop(columns="ill").to_csv("new.csv", index=False)
print(f"patients.csv: {rows} rows; new.csv: 10")
