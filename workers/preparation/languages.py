"""Which language a text is in."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from py3langid.langid import MODEL_FILE, LanguageIdentifier

#: The languages that are distinguished, by ISO 639-1 code. Rarer ones of the model are left out,
#: because they draw texts of their larger neighbours.
_CODES = (
    "af am ar az be bg bn bs ca cs cy da de el en es et eu fa fi fr ga "
    "gl gu he hi hr hu hy id is it ja ka kk km kn ko lo lt lv mk ml mn "
    "mr ms mt ne nl no or pa pl ps pt ro ru si sk sl sq sr sv sw ta te "
    "th tl tr uk ur uz vi xh zh zu"
)
KNOWN_LANGUAGES = frozenset(_CODES.split())
#: Shorter texts, in letters, say too little.
_MIN_LETTERS = 20
#: A text is read up to here.
_MAX_CHARS = 2_000
#: Below this probability the language is not certain.
_CERTAIN = 0.8
_LETTER = re.compile(r"[^\W\d_]")


@cache
def _identifier() -> Any:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(sorted(KNOWN_LANGUAGES & set(identifier.nb_classes)))
    return identifier


def detect_language(text: str) -> str | None:
    """ISO 639-1 code of a text's language; ``None`` where it is too short or not certain."""
    piece = text[:_MAX_CHARS]
    if len(_LETTER.findall(piece)) < _MIN_LETTERS:
        return None
    language, probability = _identifier().classify(piece)
    return str(language) if probability >= _CERTAIN else None
