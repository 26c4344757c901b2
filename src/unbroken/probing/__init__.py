"""What a live endpoint can do, found out by asking it: small questions, one at a time, and the provider row that makes
Unbroken handle what is bent. Asks the bare model: retries would hide the faults that are looked for."""

from unbroken.probing.asker import Asker, Reply
from unbroken.probing.findings import Answer, Finding, Judgement
from unbroken.probing.questions import QUESTIONS, Question
from unbroken.probing.report import Report, probe

__all__ = ["QUESTIONS", "Answer", "Asker", "Finding", "Judgement", "Question", "Reply", "Report", "probe"]
