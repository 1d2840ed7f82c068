RUNS = [("default", {}, {}), ("odd", {"COUNT": 31}, {})]
