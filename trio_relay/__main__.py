"""`python -m trio_relay` is the `trio-relay` program."""

from trio_relay.cli import main

main()
