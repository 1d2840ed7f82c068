"""What run.py hands to the tests."""

import json
import os
import random

LONG = bool(os.environ.get("PD_LONG"))
PARAMETERS = json.loads(os.environ.get("PD_PARAMETERS", "{}"))
CLOCK_NS = 4
SEED = os.environ.get("RANDOM_SEED", "1")


def parameter(name, default):
    return int(PARAMETERS.get(name, default))


def rng(name):
    """A generator of a test's own, so that a test alone does what it does among the others."""
    return random.Random(f"{name} {SEED}")
