"""What the fake backends of the tests share."""

from __future__ import annotations

from trio_relay.core.backend import ProviderView


class WithoutProviders:
    """A backend of tabs only."""

    def provider_rows(self) -> list[ProviderView]:
        return []

    def asked(self) -> None:
        """There is nobody to look for."""
