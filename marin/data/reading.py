"""How far a source was read when a shard of its set was finished, so that a killed import goes on in the file that it was in.

    reading/shard-00000.json   the files that had ended by then, with what each gave, and the one that was open

Each file stands there with its stamp (`marin.data.inputs`). Where one was changed since, or another one stands in its place,
all is read again from the shard in which it began. The folder is removed when the set is finished.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from marin.data.inputs import InputFile, stamp_of
from marin.data.shard_writer import Record, shard_name
from marin.storage import files

_FOLDER = "reading"
Row = dict[str, Any]


class Reading:
    """Args:
    shard_bytes: of the set; one of other shards does not go on.
    """

    def __init__(self, output_path: str, shard_bytes: int):
        self._folder, self._shard_bytes = files.join(output_path, _FOLDER), shard_bytes
        self._ended: list[Row] = []
        self._open: Row | None = None
        self._num_noted = 0

    @property
    def num_ended(self) -> int:
        """Files that were read to their end."""
        return len(self._ended)

    def go_on(self, inputs: Sequence[InputFile], records: Sequence[Record]) -> tuple[list[Record], int]:
        """Takes up what an earlier attempt has read of `inputs`.

        Args:
            records: of the first shards that it has finished.
        Returns:
            Those that can be kept, and how much of the first file that had not ended stands in them, in documents and dropped rows.
        """
        kept: list[Record] = []
        num_known = 0  # of the first file that had not ended
        for record in records:
            note = self._noted(len(kept))
            if note is None:
                break
            known = num_known + record["documents"]["kept"] + record["documents"]["dropped"]
            known -= sum(row["documents"] + sum(row["dropped"].values()) for row in note["ended"])
            if not _are_still(inputs[self.num_ended :], [*note["ended"], *([note["open"]] if known else [])]):
                break
            self._ended += note["ended"]
            num_known = known
            kept.append(record)
        self._num_noted = self.num_ended
        wanted = {_note_name(index) for index in range(len(kept))}
        for name in files.list_dir(self._folder):
            if name not in wanted:
                files.remove_tree(files.join(self._folder, name))
        return kept, num_known

    def file_opened(self, file: InputFile, stamp: Row) -> None:
        self._open = {"file": file.name, "stamp": stamp}

    def file_ended(self, num_documents: int, num_bytes: int, dropped: Counter[str]) -> None:
        """The file that was open gave so many documents and bytes of text, and so many dropped rows by reason."""
        assert self._open is not None
        counts = {"documents": num_documents, "bytes": num_bytes, "dropped": dict(sorted(dropped.items()))}
        self._ended.append(self._open | counts)
        self._open = None

    def shard_done(self, index: int) -> None:
        note = {"shard_bytes": self._shard_bytes, "ended": self._ended[self._num_noted :], "open": self._open}
        files.write_json(files.join(self._folder, _note_name(index)), note)
        self._num_noted = self.num_ended

    def table(self) -> list[Row]:
        """What each file gave."""
        return [{name: value for name, value in row.items() if name != "stamp"} for row in self._ended]

    def set_done(self) -> None:
        files.remove_tree(self._folder)

    def _noted(self, index: int) -> Row | None:
        path = files.join(self._folder, _note_name(index))
        note: Row = files.read_json(path) if files.exists(path) else {}
        return note if note.get("shard_bytes") == self._shard_bytes else None


def _are_still(inputs: Sequence[InputFile], rows: Sequence[Row]) -> bool:
    """Whether the first of `inputs` are the files of the rows, as they were; a size alone, as of some web servers, says little."""
    found = inputs[: len(rows)]
    return [row["file"] for row in rows] == [file.name for file in found] and all(
        row["stamp"].keys() - {"size"} and row["stamp"] == stamp_of(file.path)
        for row, file in zip(rows, found, strict=True)
    )


def _note_name(index: int) -> str:
    return shard_name(index) + ".json"
