"""Turns `unbroken.toml` and the options of `unbroken serve` into settings. The entry is `reading.read_config`;
`errors` collects what is wrong, with its line. `unbroken serve` itself opens what the settings name (`commands.serve`).
"""

from unbroken_gateway.config.reading import FILE, ServeOptions, read_config, read_document, settings_from_options

__all__ = ["FILE", "ServeOptions", "read_config", "read_document", "settings_from_options"]
