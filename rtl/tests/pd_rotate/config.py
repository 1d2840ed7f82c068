RUNS = [("fine", {"SEL_BITS": 4}, {}), ("coarse", {"STEP": 16, "SEL_BITS": 2}, {})]
