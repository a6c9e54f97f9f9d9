"""What the JSON files of a folder say and an import does not use: it is listed once, kept in the run, and
written again by an export."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformer.runtime.files import Json, MiB, parse_object, read_text
from transformer.runtime.text import printable

_OF_THE_FILE = (
    *("_name_or_path", "_commit_hash", "_from_model_config", "transformers_version"),
    *("architectures", "model_type", "dtype", "torch_dtype"),
)
"""Fields about the program that wrote a file, which each export has of its own."""
_VOCABULARIES = re.compile(r"tokenizer\.json|.*vocab.*\.json|.*\.index\.json")
"""Files that are used whole, or are another form of one that is."""
_seen: ContextVar[dict[str, set[str]] | None] = ContextVar("seen", default=None)


class Observed(dict[str, Any]):
    """A JSON object that notes which of its fields are read, also those of a copy with others, which may
    replace some."""

    def __init__(
        self, content: Mapping[str, Any], seen: set[str], replaced: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(content)
        self._seen, self._replaced = seen, replaced

    def _note(self, name: str) -> str:
        if name not in self._replaced:
            self._seen.add(name)
        return name

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(self._note(name))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(self._note(name), default)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self._note(str(name)))

    def __or__(self, other: Any) -> Any:
        return Observed({**dict(self), **other}, self._seen, self._replaced.union(other))

    def __ror__(self, other: Any) -> Any:
        return Observed({**other, **dict(self)}, self._seen, self._replaced)


@contextmanager
def observing() -> Iterator[None]:
    """While this lasts, `observed` notes what is read."""
    token = _seen.set({})
    try:
        yield
    finally:
        _seen.reset(token)


def observed(path: Path, content: Json) -> Json:
    """The content of a JSON file; while it is observed, as an `Observed`."""
    seen = _seen.get()
    return content if seen is None else Observed(content, seen.setdefault(path.name, set()))


def unused(folder: Path) -> dict[str, Json]:
    """The fields of each JSON file of a folder that have not been read since `observing` began. They are
    stored in the run and exported again, so a link counts only to another file of the folder, or to what the
    library of the hub has downloaded for it."""
    seen, unused_fields = _seen.get() or {}, dict[str, Json]()
    model = folder.resolve()
    for path in sorted(folder.glob("*.json")):
        if _VOCABULARIES.fullmatch(path.name) or not _NAME.fullmatch(path.name):
            continue
        with suppress(OSError, RuntimeError):  # a link to itself
            if path.resolve().parent not in (model, model.parent.parent / "blobs"):
                continue
        with suppress(OSError, ValueError):
            content, used = parse_object(without_limits(read_text(path, MiB))), seen.get(path.name, set())
            fields = {key: x for key, x in content.items() if key not in used and key not in _OF_THE_FILE}
            unused_fields |= {path.name: fields} if fields else {}
    return unused_fields


_NAME = re.compile(r"\w[\w.-]{0,80}\.json", re.ASCII)
_NO_LIMIT = re.compile(r"(?<=[:\s])\d{20,}(?=\s*[,}])")


def without_limits(text: str) -> str:
    """The text of a tokenizer_config.json without the number that stands for "no limit", 10^30."""
    return _NO_LIMIT.sub("null", text)


def listed(fields_by_file: Mapping[str, Json]) -> str:
    """The fields of each file, for people."""
    named = {name: ", ".join(printable(field, but="") for field in x) for name, x in fields_by_file.items()}
    return "; ".join(f"{printable(name, but='')}: {fields}" for name, fields in named.items())


def with_kept(stored: Mapping[str, Json], written: Mapping[str, Json]) -> dict[str, Json]:
    """The JSON files of an export, with what the imported folder had besides.

    Args:
      stored: of the run, by the names of files.
      written: by the names of files; these count where both have a field.
    """
    names = dict.fromkeys((*written, *(name for name in stored if _NAME.fullmatch(name))))
    return {name: {**stored.get(name, {}), **written.get(name, {})} for name in names}
