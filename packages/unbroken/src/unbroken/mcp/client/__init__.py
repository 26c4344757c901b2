"""The tools, resources and prompts of an MCP server, for agents: `MCPServer`, in `server`, is the way in."""
