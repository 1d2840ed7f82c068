FULL = {"INDEX_BITS": 6, "TAGS": 128}
RUNS = [("default", FULL, {}), ("wide", {**FULL, "TLP_WIDTH": 1024, "ROW_BITS": 10}, {"long": True})]
