"""Where each value of a config stands, and errors that name the place."""

from dataclasses import dataclass, field

from tf_graft.core.media import for_message

Key = tuple[str | int, ...]


class ConfigError(ValueError):
    """A config that cannot be run; the message says where, and what to write instead."""


@dataclass
class Source:
    """The place that each value of a config came from."""

    file: str
    lines: dict[Key, int] = field(default_factory=dict)
    overrides: dict[Key, str] = field(default_factory=dict)

    def error(self, key: Key, message: str) -> ConfigError:
        """Makes a ConfigError that names the place where `key`, or its section, was set."""
        for end in range(len(key), -1, -1):
            if key[:end] in self.overrides:
                return override_error(self.overrides[key[:end]], message)
            if key[:end] in self.lines:
                return ConfigError(f"{self.file}:{self.lines[key[:end]]}: {message}")
        return ConfigError(f"{self.file}: {message}")

    def at(self, line: int | None, key: Key, message: str) -> ConfigError:
        """Makes a ConfigError that names a line of the file, or the override that set `key`."""
        if self.overridden(key):
            return self.error(key, message)
        return ConfigError(f"{self.file}:{line}: {message}" if line else f"{self.file}: {message}")

    def note(self, line: int, key: Key) -> None:
        """Records the line of a key, unless an override set it."""
        if not self.overridden(key):
            self.lines.setdefault(key, line)

    def override(self, key: Key, text: str) -> None:
        """Records the override that sets a key, in place of the values that it replaces."""
        replaced = [k for k in (*self.lines, *self.overrides) if k[: len(key)] == key]
        for known in replaced:
            self.lines.pop(known, None)
            self.overrides.pop(known, None)
        self.overrides[key] = text

    def overridden(self, key: Key) -> bool:
        """Returns whether an override set a key, or a section that it is in."""
        return any(key[: len(over)] == over for over in self.overrides)


def reason(error: OSError) -> str:
    """Returns the operating system's message as a part of a sentence."""
    said = error.strerror or str(error)
    return f"{said[:1].lower()}{said[1:]}"


def last_name(key: Key) -> str:
    """Returns the innermost name in a key, by which an error names the value."""
    names = (part for part in reversed(key) if isinstance(part, str))
    return for_message(next(names, "the config"))


def override_error(override: str, message: str) -> ConfigError:
    """Makes a ConfigError about an override."""
    return ConfigError(f"override '{for_message(override)}': {message}")


def shown(value: object) -> str:
    """Formats a value for an error sentence."""
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    return f"the text {value[:60]!r}" if isinstance(value, str) else str(value)[:60]
