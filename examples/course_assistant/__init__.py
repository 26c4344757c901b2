"""The course assistant: questions about course materials, answered in at most `MAX_TOOL_ROUNDS` rounds of tool calls.

An application on Unbroken's public names. Started from the folder `examples`: `python -m course_assistant ask "…"`.
"""
