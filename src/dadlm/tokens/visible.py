"""How one token is shown to a person: always on one line, and lone bytes of a character in hex."""

_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}  # these would tear a picture or a terminal line apart


def _byte_table() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_table()


def visible(text: str, token: str) -> str:
    """`text` is what the token decodes to, `token` its name in the vocabulary."""
    if "\ufffd" in text and all(char in _BYTE_OF for char in token):  # bytes that are no whole character
        text = bytes(_BYTE_OF[char] for char in token).decode("utf-8", errors="surrogateescape")
    return "".join(map(_sign, text))


def _sign(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # surrogateescape's way to write the byte 0x80 .. 0xFF
        return f"<{ord(char) - 0xDC00:02X}>"
    return _SIGNS.get(char) or (char if char.isprintable() else f"<{ord(char):02X}>")
