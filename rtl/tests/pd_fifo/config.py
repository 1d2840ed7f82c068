RUNS = [("default", {}, {}), ("two", {"LOG2_DEPTH": 1, "WIDTH": 100}, {})]
