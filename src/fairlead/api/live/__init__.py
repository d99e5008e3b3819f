"""Events as they happen, for clients in any language: a socket, and server-sent events.

Start with ``hub``, which reads the broker once for all clients; ``socket`` and ``sent_events``
serve them, each through a ``subscription``.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary, ref

from fairlead.api.http.mount import Application, Mount
from fairlead.api.live.hub import Hub
from fairlead.api.live.sent_events import SentEvents
from fairlead.api.live.websocket import Sockets
from fairlead.api.service import Service
from fairlead.client import Client
from fairlead.model.errors import Refused

_hubs: WeakKeyDictionary[Service, Hub] = WeakKeyDictionary()


def hub_of(service: Service) -> Hub:
    """The hub of a server: sockets and streams share one."""
    hub = _hubs.get(service)
    if hub is None:
        known = ref(service)  # the hub must not keep the server for which it is remembered

        def client() -> Client:
            alive = known()
            if alive is None:
                raise Refused("closed", "the server of the API is gone")
            return alive.client()

        hub = _hubs[service] = Hub(client, is_drained=service.drained.is_set)
    return hub


def _sockets(service: Service) -> Application:
    return Sockets(service, hub_of(service))


def _sent_events(service: Service) -> Application:
    return SentEvents(service, hub_of(service))


MOUNTS = (
    Mount(path="/ws", make=_sockets, summary="Events as they happen, over a WebSocket."),
    Mount(
        path="/events",
        make=_sent_events,
        scope="read",
        summary="Events as they happen, as server-sent events.",
    ),
)
