"""Small queues, so that they fill up and wrap often."""

SMALL = {"QUEUES": 16, "LOG2_DEPTH": 6}

RUNS = [
    ("small", SMALL, {}),
]
