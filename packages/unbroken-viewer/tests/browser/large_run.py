"""A recording of a large run, written as text: 10,000 events and more, thousands of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(path: Path, turns: int = 220, calls: int = 10, words: int = 24) -> Path:
    lines: list[dict[str, Any]] = [
        {"line": "run", "schema": 1, "run": "large", "agent_name": "main", "time": 1000.0, "model": "scripted:large",
         "settings": {"schedule": "eager"},
         "messages": [{"role": "user", "content": [{"type": "text", "text": "Do very much."}]}]},
    ]  # fmt: skip
    seq, now = 0, 0.0

    def event(kind: str, turn: int, **fields: Any) -> None:
        nonlocal seq
        common = {"run": "large", "turn": turn, "seq": seq, "time": 1000 + now}
        lines.append({"line": "event", "event": kind, **common, **fields})
        seq += 1

    def line(kind: str, turn: int, **fields: Any) -> None:
        lines.append({"line": kind, "at": round(now, 6), "turn": turn, **fields})

    for turn in range(turns):
        event("request_sent", turn, messages=2 + 2 * turn, tools=1, final=False)
        line("request", turn, keep=2 * turn, messages=[{"role": "user", "content": [{"type": "text", "text": "go"}]}])
        for word in range(words):
            now += 0.02
            line("delta", turn, delta="text", text=f"word {word} ")
            event("text_added", turn, text=f"word {word} ")
        for index in range(calls):
            id = f"call_{turn}_{index}"
            call = {"id": id, "name": f"tool_{index}", "arguments": {"n": index}, "complete": True, "index": index}
            line("delta", turn, delta="call_opened", index=index, name=f"tool_{index}", id=id)
            now += 0.03
            line("delta", turn, delta="call_ready", call=call)
            event("call_started", turn, call_id=id, name=f"tool_{index}", arguments={"n": index}, early=index < 8)
        line("delta", turn, delta="ended", verdict={"kind": "whole", "finish": "tool_calls"}, as_heard=True)
        for index in range(calls):
            now += 0.05
            failed = (turn + index) % 17 == 0
            event("call_finished", turn, call_id=f"call_{turn}_{index}", name=f"tool_{index}", seconds=0.3,
                  error=failed, text="a result", duplicate_of="", executed=True, dropped=False)  # fmt: skip
        event("round_finished", turn, calls=calls, failed=0, seconds=0.5)
    event("run_finished", turns, text="done", stop_reason="answered", rounds=turns, requests=turns, calls=turns * calls,
          usage={}, seconds=now, messages=[], keep=0)  # fmt: skip
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines))
    return path
