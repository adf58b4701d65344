"""Documents in annotations: small YAML or JSON, and an end to everything that could be large."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from cri_proxy.text.annotation_value import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, BadAnnotation, read_value

#: Both that PyYAML may have been built with.
LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]

DOCUMENTS: dict[str, tuple[str, Any]] = {
    "nothing": ("", ""),
    "an empty document": ("---\n", ""),
    "a text": ("on", "on"),
    "numbers and booleans stay texts": (
        "a: [1, 0x1F, 1:30, yes, 1.50]",
        {"a": ["1", "0x1F", "1:30", "yes", "1.50"]},
    ),
    "null": ("{a: null, b: ~, c: }", {"a": "", "b": "", "c": ""}),
    "a quoted null is a text": ("a: 'null'", {"a": "null"}),
    "block and flow": ("a:\n- b: {c: d}\n", {"a": [{"b": {"c": "d"}}]}),
    "JSON": ('{"a": [1, 2.50, true, null, "x"]}', {"a": ["1", "2.50", "true", "", "x"]}),
    "JSON indented by tabs": ('{\n\t"a": "b"\n}', {"a": "b"}),
    "an alias": ("a: &x [b]\nc: *x", {"a": ["b"], "c": ["b"]}),
    "tags are passed over": ("!!python/object/apply:os.system [x]", ["x"]),
}

BAD = {
    "not YAML": ("a: [b", "this is neither YAML nor JSON: "),
    "two documents": ("a\n---\nb", "it holds several documents, expected one"),
    "a key given twice": ("{a: b, a: c}", "the key 'a' is given twice"),
    "a list as a key": ("? [a]\n: b", "a key is a list, expected a text"),
    "an alias inside itself": ("&a [*a]", "*a is not the name of an earlier value"),
    "an unknown alias": ("*a", "*a is not the name of an earlier value"),
    "a character that YAML forbids": (
        "a: \x00",
        "this is neither YAML nor JSON: a character in it is not allowed",
    ),
    "half a character": ("a: \ud800", "this is neither YAML nor JSON: a character in it is not allowed"),
    "an escape that is no character": ('"\\UFFFFFFFF"', "this is neither YAML nor JSON: "),
    "too long": (
        "x" * (MAX_CHARACTERS + 1),
        f"it has {MAX_CHARACTERS + 1} characters, expected at most {MAX_CHARACTERS}",
    ),
    "too deep in brackets": ("[" * 8000, f"it is nested deeper than {MAX_DEPTH} levels"),
    "too deep in blocks": ("- " * 4000, f"it is nested deeper than {MAX_DEPTH} levels"),
    "too deep in keys": ("? " * 4000, f"it is nested deeper than {MAX_DEPTH} levels"),
    "too deep in JSON": ('{"a":' * 1000, f"it is nested deeper than {MAX_DEPTH} levels"),
    "a few lines that stand for gigabytes": (
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
        f"it holds more than {MAX_VALUES} values",
    ),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_texts_lists_and_mappings(name: str, loader: Any) -> None:
    text, value = DOCUMENTS[name]
    assert read_value(text, loader) == value


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_document_is_one_error(name: str, loader: Any) -> None:
    text, phrase = BAD[name]
    with pytest.raises(BadAnnotation) as caught:
        read_value(text, loader)
    assert str(caught.value).startswith(phrase)
