"""The exception tree. Every error a user can cause says what was wrong, what was expected and what to do."""


class DadlmError(Exception):
    """Base of all errors raised on purpose; the command line prints it and exits with code 2."""


class ConfigError(DadlmError, ValueError):
    """A setting that cannot be honoured, alone or together with another."""


class DataError(DadlmError, ValueError):
    """Text, tokens or files that cannot be used."""


class EndpointError(DadlmError):
    """A server gave no usable answer although it was asked again and again."""


class CheckpointError(DadlmError):
    """Weights that are missing, damaged, or belong to another model."""


class TrainingError(DadlmError):
    """Training had to stop; the message says at which step and what was saved."""
