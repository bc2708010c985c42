"""cascade_kv: the CASCADE cache from Python. Engines use Client; its adapters are in the modules named after them."""

from .client import Client
from .errors import CascadeError, RegionRefused
from .names import namespace
from .ops import Event, Events, Probe
from .region import Region
from .view import View

__all__ = ["CascadeError", "Client", "Event", "Events", "Probe", "Region", "RegionRefused", "View", "namespace"]
