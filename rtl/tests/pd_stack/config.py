"""Small queues, so that they fill up and wrap often."""

SMALL = {"QUEUES": 16, "LOG2_DEPTH": 6}

RUNS = [
    ("small", SMALL, {}),
    ("full", {}, {"long": True}),
    ("gen4", {**SMALL, "TLP_WIDTH": 1024}, {"long": True}),
    ("gen5", {**SMALL, "TLP_WIDTH": 2048}, {"long": True}),
    ("large-copies", {**SMALL, "COPY_BYTES_MAX": 65536, "BUFFER_BYTES": 1 << 20, "TAGS": 256}, {"long": True}),
    ("scarce", {**SMALL, "BUFFER_BYTES": 32768, "TAGS": 32, "BATCHES": 8}, {"long": True, "modules": ["test_pd_stack"]}),
]
