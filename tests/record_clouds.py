"""Records the calls of the clouds' clients that the market uses, as the clients define them.

Run in an environment that has the extra ``cloud``: ``python -m tests.record_clouds``.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "clouds"
#: By distribution and module, what is called or looked up there.
USED = {
    "modal": {
        "modal": (
            *("App.lookup", "Image.entrypoint", "Image.from_registry"),
            *("Sandbox.create", "Sandbox.get_tags", "Sandbox.list", "Sandbox.terminate"),
            *("Secret.from_dict", "exception.AlreadyExistsError", "exception.Error"),
        )
    },
    "skypilot": {
        "sky": ("Task", "Resources", "ClusterStatus", "StatusRefreshMode"),
        "sky.client.sdk": (
            *("api_cancel", "api_status", "down", "enabled_clouds", "get"),
            *("launch", "list_accelerators", "status"),
        ),
        "sky.catalog.common": ("InstanceTypeInfo",),
    },
}


def describe(found: Any) -> Any:
    """Parameters in order, members of an enumeration, or an exception's own bases."""
    if inspect.isclass(found) and issubclass(found, enum.Enum):
        return {"members": [member.name for member in found]}
    if inspect.isclass(found) and issubclass(found, BaseException):
        return {"bases": [base.__name__ for base in found.__mro__[1:]]}
    target = found.__init__ if inspect.isclass(found) and not hasattr(found, "_fields") else found
    fields = getattr(found, "_fields", None)
    if fields is not None:
        return {"parameters": list(fields)}
    names = [
        f"*{name}" if one.kind is one.VAR_POSITIONAL else name
        for name, one in inspect.signature(target).parameters.items()
        if name != "self"
    ]
    return {"parameters": names}


def main() -> None:
    from importlib.metadata import version

    FOLDER.mkdir(exist_ok=True)
    for package, modules in USED.items():
        calls: dict[str, Any] = {}
        for module_name, names in modules.items():
            for name in names:
                found = importlib.import_module(module_name)
                for part in name.split("."):
                    found = getattr(found, part)
                calls[f"{module_name}.{name}"] = describe(found)
        recorded = {"version": version(package), "calls": calls}
        text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
        (FOLDER / f"{package}.json").write_text(text)


if __name__ == "__main__":
    main()
