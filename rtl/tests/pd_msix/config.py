RUNS = [("small", {"VECTORS": 32}, {}), ("full", {}, {"long": True})]
