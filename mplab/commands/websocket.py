"""Send messages from kernel to page at once in `mplab lab`, so that sliders do not lag."""

from typing import Any

from jupyter_server.services.kernels.connection.channels import (
    ZMQChannelsWebsocketConnection,
)


class PromptConnection(ZMQChannelsWebsocketConnection):
    """Sends each message at once.

    Jupyter Server leaves Nagle's algorithm on: a small message waits until the browser has
    acknowledged the one before, which browsers delay by some 40 ms. One press of a key makes
    five small messages.

    Source: RFC 896, RFC 1122 §4.2.3.2, and the documentation of tornado's `set_nodelay`.
    """

    def connect(self) -> Any:
        """Connect the page with its kernel."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()
