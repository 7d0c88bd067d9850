"""An OpenAI-compatible server for one model, with a page to chat on."""

from marin.inference.server.app import build_app
from marin.inference.server.limits import Limits
from marin.inference.server.worker import Worker

__all__ = ["Limits", "Worker", "build_app"]
