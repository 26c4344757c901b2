"""Tests what a live endpoint can do: small requests, one at a time, and the provider profile that makes Unbroken handle
what is bent. Uses the bare model: retries would hide the problems."""

from unbroken.probing.asker import Asker, Reply
from unbroken.probing.findings import Answer, Finding, Judgement
from unbroken.probing.questions import QUESTIONS, Question
from unbroken.probing.report import Report, probe

__all__ = ["QUESTIONS", "Answer", "Asker", "Finding", "Judgement", "Question", "Reply", "Report", "probe"]
