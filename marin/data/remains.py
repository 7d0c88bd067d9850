"""What a killed writer leaves behind: temporary files beside the ones that it was writing. Nothing reads them.

A step that goes on in the directory of a killed attempt removes them first, so that its output is what it would be
without the kill.
"""

import re

from marin.storage import files

# What `files.temporary_name` makes.
_TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{16}\.tmp")


def remove_remains(directory: str) -> None:
    """Removes the temporary files of dead writers in a local directory itself, not below it.

    Whoever calls it must be the only writer there.
    """
    if files.is_local(directory):
        for name in files.list_dir(directory):
            if _TEMPORARY.fullmatch(name):
                files.remove_file(files.join(directory, name))
