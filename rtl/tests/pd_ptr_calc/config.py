RUNS = [("default", {}, {}), ("least", {"LOG2_DEPTH": 5}, {}), ("most", {"LOG2_DEPTH": 15}, {})]
