RUNS = [("default", {"ROWS": 64}, {}), ("wide", {"ROWS": 32, "BYTES": 256}, {"long": True})]
