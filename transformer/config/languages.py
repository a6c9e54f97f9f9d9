"""Codes of languages: how they are written, and in the names of files."""

import re
from pathlib import Path

CODE = re.compile(r"[\w-]+")
"""What an option accepts as a language."""
_ISO_639_1 = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv "
    "dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie "
    "ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv "
    "mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm "
    "rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr "
    "ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
_SUFFIX = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|([a-z]{2})([-_]([A-Za-z]{2}|[A-Z][a-z]{3}))?")
"""Such as zho_Hans (FLORES), de, pt-BR or zh_Hant; .txt and .src are none of them."""
_SAME = {
    **dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "gan", "hsn", "lzh"), "zh"),
    **{"jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my", "bur": "my"},
    **{"bod": "bo", "tib": "bo", "dzo": "dz"},
}


def language_of(path: Path | str | None) -> str | None:
    """The language that the last suffix of a file's name is, such as `de` of `train.de`; None if it is none,
    as of `train.txt`."""
    suffix = Path(path).suffix[1:] if path else ""
    match = _SUFFIX.fullmatch(suffix)
    return suffix if match and (match[1] is None or match[1] in _ISO_639_1.split()) else None


def written_as(code: str | None) -> str:
    """The two letters of a language, which decide how its text is divided: `zh` of zh-TW, zho_Hans and yue.
    Codes of other languages are as they are, but for region and script; empty if there is none."""
    language = re.split("[-_]", (code or "").lower())[0]
    return _SAME.get(language, language)
