"""What the tests of a run made happen. A feature that was declared and not seen fails the run."""

import json
import os

HITS = {}


def declare(*features):
    for feature in features:
        HITS.setdefault(feature, 0)


def hit(feature, count=1):
    HITS[feature] = HITS.get(feature, 0) + count


def report():
    """Writes what was seen; called by the last test of a module, which also fails on what was not."""
    with open(os.environ["PD_COVERAGE"], "w") as out:
        json.dump(HITS, out)
    missing = sorted(feature for feature, hits in HITS.items() if not hits)
    assert not missing, f"never seen: {missing}"
