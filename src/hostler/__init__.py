"""hostler runs complete agent programs in durable sessions."""
