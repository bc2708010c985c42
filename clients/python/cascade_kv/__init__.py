"""cascade_kv: the CASCADE cache from Python. Engines use Client; its adapters are in the modules named after them."""

from .advice import Advice, Probe
from .aio import AsyncClient
from .client import Client
from .errors import CascadeError, ForeignServer, RegionRefused
from .index import Run
from .layout import Layout
from .names import namespace
from .ops import Event, Events
from .region import Region
from .ring import Ring
from .storage import CascadeAdapter, StorageAdapter
from .view import View

__all__ = [
    "AsyncClient",
    "CascadeAdapter",
    "CascadeError",
    "Client",
    "Event",
    "Events",
    "ForeignServer",
    "Layout",
    "Probe",
    "Region",
    "RegionRefused",
    "Ring",
    "Run",
    "StorageAdapter",
    "View",
    "namespace",
]
