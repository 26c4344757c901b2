"""Tests what a live endpoint can do, with small requests, one at a time, and returns the provider profile with which
Unbroken handles its differences. It uses the model without retries, which would hide the problems."""

from unbroken_testing.probing.probe_client import Answer, Finding, Judgement, ProbeClient, Reply
from unbroken_testing.probing.questions import QUESTIONS, Question, Report, probe

__all__ = ["QUESTIONS", "Answer", "Finding", "Judgement", "ProbeClient", "Question", "Reply", "Report", "probe"]
