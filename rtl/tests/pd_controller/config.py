RUNS = [("few", {"QUEUES": 16, "BATCHES": 8}, {}), ("default", {}, {}), ("wide", {"TLP_WIDTH": 2048, "ROW_BITS": 9}, {"long": True})]
