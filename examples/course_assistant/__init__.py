"""The course assistant: questions about course materials, answered in at most `MAX_TOOL_ROUNDS` rounds of tool calls.

It uses only Unbroken's public names. Start it from the folder `examples`: `python -m course_assistant ask "…"`.
"""
