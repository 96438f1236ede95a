"""The extension protocol: our side as a host of provider extensions, and as a provider for host extensions."""
