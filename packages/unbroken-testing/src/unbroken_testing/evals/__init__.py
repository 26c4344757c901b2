"""Evals: ask an agent many cases, score its answers, keep a recording of each run, and compare with an earlier
result."""

from unbroken_testing.evals.case_files import read_cases
from unbroken_testing.evals.cases import Case, Score, Scorer
from unbroken_testing.evals.comparing import CaseChange, Comparison, compare
from unbroken_testing.evals.evaluator import evaluate
from unbroken_testing.evals.judging import judge
from unbroken_testing.evals.recorded_cases import evaluate_recordings
from unbroken_testing.evals.report import report_page
from unbroken_testing.evals.results import CaseResult, Difference, Evaluation, Trial, read_evaluation
from unbroken_testing.evals.scorers import called, contains, exact, fits

__all__ = [
    "Case",
    "CaseChange",
    "CaseResult",
    "Comparison",
    "Difference",
    "Evaluation",
    "Score",
    "Scorer",
    "Trial",
    "called",
    "compare",
    "contains",
    "evaluate",
    "evaluate_recordings",
    "exact",
    "fits",
    "judge",
    "read_cases",
    "read_evaluation",
    "report_page",
]
