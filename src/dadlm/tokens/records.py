"""The text of one record, wherever it comes from, or a complaint that says what is wrong with it."""

from dadlm.errors import DataError


def field_of(record: object, text_field: str, where: str) -> str:
    """The text of one record, or an error saying where, and which fields there are."""
    if not isinstance(record, dict):
        raise DataError(
            f'{where}: expected an object like {{"{text_field}": "..."}}, found {type(record).__name__}'
        )
    if text_field not in record:
        names = ", ".join(map(str, record)) or "none"
        raise DataError(
            f"{where}: no field {text_field!r}; its fields are: {names}. Choose one as text field"
        )
    text = record[text_field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {text_field!r} holds {type(text).__name__}, expected text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair
            half = ascii(text[error.start])
            raise DataError(
                f"{where}: field {text_field!r} holds half a character ({half}), not valid Unicode"
            ) from error
    return text
