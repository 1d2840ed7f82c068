RUNS = [("default", {"QUEUES": 16, "LOG2_DEPTH": 10}, {})]
