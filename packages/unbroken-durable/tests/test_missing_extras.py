"""Without an extra, what needs it names it."""

from __future__ import annotations

import pytest
from hidden_packages import run_without


@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("psycopg", "asyncio.run(unbroken_durable.open_journal('postgresql://h/d'))", "postgres"),
        ("temporalio", "import unbroken_durable.temporal", "temporal"),
        ("dbos", "import unbroken_durable.dbos", "dbos"),
        ("celery", "import unbroken_durable.celery", "celery"),
        ("ag_ui", "import unbroken.agent.ag_ui", "ag-ui"),
    ],
)
def test_an_error_names_the_extra(package: str, code: str, extra: str) -> None:
    done = run_without(package, f"import asyncio, unbroken_durable; {code}")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("unbroken_wires.errors.UserError: "), done.stderr
    assert f"pip install 'unbroken[{extra}]' (in a checkout: pip install ./packages/* 'unbroken[{extra}]')" in last
