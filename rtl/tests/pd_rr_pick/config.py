RUNS = [("default", {}, {}), ("few", {"COUNT": 4}, {})]
