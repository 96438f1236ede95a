"""What a process is at this moment: the owner of the browser's sockets, behind the `ToolBackend` contract."""
