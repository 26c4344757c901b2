"""An MCP server for the tests that runs its calls as tasks, and is strict about it: `python mcp_task_server.py` uses
its pipes, `build()` returns it for HTTP, both in the form of 2026. With `OLDER` in the environment it speaks the
protocol of 2025-11-25, by hand."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError

TASKS = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY = -32021
INTERVAL = 60
"""Milliseconds between polls; a client that polls faster is refused."""
FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
WHEN = {"createdAt": "2026-11-18T12:00:00Z", "lastUpdatedAt": "2026-11-18T12:00:00Z"}
ENDS = ("completed", "failed", "cancelled")


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


@dataclass
class Task:
    """It takes one step with each poll: a status message, or its end."""

    id: str
    tool: str
    steps: list[str]
    status: str = "working"
    message: str = "queued"
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    colour: Any = None
    polled: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def advance(self) -> None:
        if self.status != "working":
            return
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        match step:
            case "done":
                self._end(
                    "completed", result=said(f"{self.tool} is done" + (f": {self.colour}" if self.colour else ""))
                )
            case "error":
                self._end("completed", result=said("there is no paper", isError=True))
            case "failed":
                self._end("failed", error={"code": -32603, "message": "out of cheese"})
            case "stopped":
                self.message = "the operator stopped it"
                self._end("cancelled")
            case "ask":
                self.status = "input_required"
            case "die":
                sys.stderr.write("fatal: the disk is full\n")
                sys.stderr.flush()
                os._exit(3)
            case _:
                self.message = step

    def _end(self, status: str, **outcome: Any) -> None:
        self.status = status
        self.result, self.error = outcome.get("result"), outcome.get("error")
        self.ended.set()

    def cancel(self) -> None:
        self._end("cancelled")


STEPS = {
    "build": ["compiling", "linking", "done"],
    "rebuild": ["compiling"] * 8 + ["done"],
    "fail": ["failed"],
    "refuse": ["error"],
    "stop": ["stopped"],
    "forget": ["thinking", "forgotten"],
    "paint": ["ask", "done"],
    "hang": ["working on it"],
    "crash": ["die"],
}


class Desk:
    """The tasks, and what clients asked for."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.log: list[str] = []

    def create(self, tool: str) -> Task:
        id = f"task-{len(self.tasks) + 1}"
        self.log.append(f"call {tool}")
        self.tasks[id] = Task(id, tool, list(STEPS[tool]))
        return self.tasks[id]

    def find(self, id: str, method: str) -> Task:
        task = self.tasks.get(id)
        if task is None or task.message == "forgotten":
            raise MCPError(types.INVALID_PARAMS, "Task not found")
        self.log.append(f"{method} {task.tool}")
        return task

    def poll(self, id: str) -> Task:
        task = self.find(id, "get")
        now = time.monotonic()
        if now - task.polled < INTERVAL / 1000 - 0.01:
            raise MCPError(types.INVALID_PARAMS, "polled too fast")
        task.polled = now
        task.advance()
        return task


DESK = Desk()
"""Of the server in this process."""


# 2026


class UpdateParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any]


class TaskExtension(Extension):
    identifier = TASKS

    def methods(self) -> list[MethodBinding]:
        return [
            MethodBinding("tasks/get", types.GetTaskRequestParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", types.CancelTaskRequestParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: types.CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> Any:
        capabilities = ctx.session.client_capabilities
        if params.name not in STEPS or TASKS not in ((capabilities and capabilities.extensions) or {}):
            return await call_next(ctx)
        return {"resultType": "task", **self._state(DESK.create(params.name))}

    def _state(self, task: Task) -> dict[str, Any]:
        state = {"taskId": task.id, "status": task.status, "statusMessage": task.message, "ttlMs": 60000, **WHEN}
        return {**state, "pollIntervalMs": INTERVAL}

    def _checked(self, ctx: ServerRequestContext[Any, Any], id: str) -> None:
        capabilities = ctx.session.client_capabilities
        if TASKS not in ((capabilities and capabilities.extensions) or {}):
            raise MCPError(MISSING_CAPABILITY, "Missing required client capability")
        if ctx.request is not None and ctx.request.headers.get("mcp-name") != id:
            raise MCPError(types.INVALID_PARAMS, "the header Mcp-Name is not the task")

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: types.GetTaskRequestParams) -> Any:
        self._checked(ctx, params.task_id)
        task = DESK.poll(params.task_id)
        more: dict[str, Any] = {"result": task.result} if task.result is not None else {}
        if task.error is not None:
            more = {"error": task.error}
        if task.status == "input_required":
            question = {"mode": "form", "message": "Which colour?", "requestedSchema": FORM}
            more = {"inputRequests": {"colour-1": {"method": "elicitation/create", "params": question}}}
        return {"resultType": "complete", **self._state(task), **more}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> Any:
        self._checked(ctx, params.task_id)
        task = DESK.find(params.task_id, "update")
        if task.status != "input_required" or [*params.input_responses] != ["colour-1"]:
            raise MCPError(types.INVALID_PARAMS, "that was not asked")
        answer = params.input_responses["colour-1"]
        task.colour, task.status = answer.get("content", answer["action"]), "working"
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: types.CancelTaskRequestParams) -> Any:
        self._checked(ctx, params.task_id)
        DESK.find(params.task_id, "cancel").cancel()
        return {"resultType": "complete"}


def build() -> MCPServer[Any]:
    server = MCPServer("workshop", log_level="CRITICAL", extensions=[TaskExtension()])

    def add(name: str) -> None:
        server.add_tool(lambda: f"{name} at once", name=name, description=f"To {name}.")

    for name in (*STEPS, "greet"):
        add(name)
    return server


# 2025-11-25, over pipes


class Older:
    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        lines = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            message = json.loads(line)
            if "method" not in message:
                self._answers.pop(message["id"]).set_result(message)
            elif "id" in message:
                work = asyncio.create_task(self._reply(message))
                self._running.add(work)
                work.add_done_callback(self._running.discard)

    def _send(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    async def _reply(self, message: dict[str, Any]) -> None:
        try:
            self._send(id=message["id"], result=await self._result(message["method"], message.get("params") or {}))
        except MCPError as error:
            self._send(id=message["id"], error={"code": error.code, "message": error.message})

    async def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                can: dict[str, Any] = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
                about = {"name": "workshop", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": can, "serverInfo": about}
            case "tools/list":
                return {"tools": [self._listed(name) for name in (*STEPS, "greet", "log")]}
            case "tools/call":
                return self._call(params)
            case "tasks/get":
                return self._state(DESK.poll(params["taskId"]))
            case "tasks/result":
                return await self._end_of(DESK.find(params["taskId"], "result"))
            case "tasks/cancel":
                task = DESK.find(params["taskId"], "cancel")
                if task.status in ENDS:
                    raise MCPError(types.INVALID_PARAMS, "it has ended")
                task.cancel()
                return self._state(task)
            case _:
                raise MCPError(types.METHOD_NOT_FOUND, "Method not found")

    def _listed(self, name: str) -> dict[str, Any]:
        support = {"execution": {"taskSupport": "required" if name == "build" else "optional"}} if name in STEPS else {}
        return {"name": name, "inputSchema": {"type": "object"}, **support}

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        name, wanted = params["name"], params.get("task")
        if wanted is None and name == "build":
            raise MCPError(types.METHOD_NOT_FOUND, "this tool is always a task")
        if wanted is not None and name not in STEPS:
            raise MCPError(types.METHOD_NOT_FOUND, "this tool is never a task")
        if wanted is None:
            return said(json.dumps(DESK.log) if name == "log" else f"{name} at once")
        task = DESK.create(name)
        if name == "build":
            token = params["_meta"]["progressToken"]
            asyncio.get_running_loop().call_later(
                0.08,
                lambda: self._send(
                    method="notifications/progress",
                    params={"progressToken": token, "progress": 1, "total": 2, "message": "half of it"},
                ),
            )
        return {"task": self._state(task)}

    def _state(self, task: Task) -> dict[str, Any]:
        state = {"taskId": task.id, "status": task.status, "statusMessage": task.message, "ttl": 60000, **WHEN}
        return {**state, "pollInterval": INTERVAL}

    async def _end_of(self, task: Task) -> dict[str, Any]:
        related = {"io.modelcontextprotocol/related-task": {"taskId": task.id}}
        if task.status == "input_required":
            self._answers[f"ask-{task.id}"] = answered = asyncio.get_running_loop().create_future()
            question = {"message": "Which colour?", "requestedSchema": FORM, "_meta": related}
            self._send(id=f"ask-{task.id}", method="elicitation/create", params=question)
            answer = (await answered)["result"]
            task.colour, task.status = answer.get("content", answer["action"]), "working"
        await task.ended.wait()
        if task.error is not None:
            raise MCPError(task.error["code"], task.error["message"])
        if task.result is None:
            raise MCPError(types.INTERNAL_ERROR, "cancelled")
        return {**task.result, "_meta": related}


if __name__ == "__main__":
    if "OLDER" in os.environ:
        asyncio.run(Older().run())
    else:
        build().run()
