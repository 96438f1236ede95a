"""One socket, one nursery, one reader, one writer. The only room that imports trio_websocket."""
