"""Deep Agents, the agent of LangChain on LangGraph, as a program: its graph, its files and shell, its checkpoints."""
