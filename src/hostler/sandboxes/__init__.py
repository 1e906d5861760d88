"""The places where an agent program's processes can run."""
