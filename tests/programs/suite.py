"""Runs one of CPython's own test modules. `suite.py FILE MODULE`: writes a line for each test with its outcome."""
import sys
import unittest
from test import support


class Outcomes(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.outcomes = {}

    def note(self, test, outcome):
        if self.outcomes.get(test.id(), "ok") == "ok":
            self.outcomes[test.id()] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "error")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "failed")


def flat(tests):
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


support.verbose = 0
support.use_resources = []
tests = unittest.defaultTestLoader.loadTestsFromName(sys.argv[2])
# They wait for ever in some virtual machines, and are no business of TCP.
wanted = unittest.TestSuite(test for test in flat(tests) if "VSOCK" not in test.id())
result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2).run(wanted)
with open(sys.argv[1], "w") as file:
    for test, outcome in sorted(result.outcomes.items()):
        print(test, outcome, file=file)
