"""Evals: ask an agent many cases, score its answers, keep a recording of each run, and compare with an earlier
result."""

from unbroken.evals.case_files import read_cases
from unbroken.evals.cases import Case, Score, Scorer
from unbroken.evals.comparing import CaseChange, Comparison, compare
from unbroken.evals.evaluator import evaluate
from unbroken.evals.judging import judge
from unbroken.evals.recorded_cases import evaluate_recordings
from unbroken.evals.report import report_page
from unbroken.evals.results import CaseResult, Difference, Evaluation, Trial, read_evaluation
from unbroken.evals.scorers import called, contains, exact, fits

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
