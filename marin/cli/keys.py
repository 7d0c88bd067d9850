"""Where keys for outside services are found. Their values are looked at only to see that they are there.

A key counts when it is in the environment or stored by the service's own login command, which the services' libraries
then use by themselves. A `.env` file in the repository counts only once a shell has loaded it.
"""

import dataclasses
import netrc
import os
import pathlib


@dataclasses.dataclass(frozen=True)
class Service:
    """An optional outside service, and how its login is done."""

    name: str
    variable: str
    login_command: str
    purpose: str


WANDB = Service("Weights & Biases", "WANDB_API_KEY", "uvx wandb login", "copies metrics to wandb.ai")
HUGGING_FACE = Service("Hugging Face", "HF_TOKEN", "uvx hf auth login", "gated data sets and models")
SERVICES = (WANDB, HUGGING_FACE)

_HF_OLD_VARIABLE = "HUGGING_FACE_HUB_TOKEN"


def _has_netrc_login(host: str) -> bool:
    # Path.expanduser fails for a user without a home directory.
    path = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    try:
        login = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False
    return bool(login and login[2])


def _hf_token_file() -> pathlib.Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    return pathlib.Path(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))


def _has_stored_login(service: Service) -> bool:
    if service is WANDB:
        url = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        return _has_netrc_login(url.split("://")[-1].split("/")[0].split(":")[0])
    try:
        return bool(_hf_token_file().read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return False


def _variables_of(service: Service) -> tuple[str, ...]:
    return (service.variable, _HF_OLD_VARIABLE) if service is HUGGING_FACE else (service.variable,)


def find_key(service: Service) -> str | None:
    """Says "set (environment)" or "stored login" where the service has a key; None where it has none."""
    if any(os.environ.get(variable, "").strip() for variable in _variables_of(service)):
        return "set (environment)"
    return "stored login" if _has_stored_login(service) else None


def in_env_file(service: Service, path: pathlib.Path) -> bool:
    """Whether a `.env` file gives the service's variable a value."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    settings = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return any(name.strip() in _variables_of(service) and value.strip(" '\"") for name, _, value in settings)
