"""Turns `unbroken.toml` and the options of `unbroken serve` into settings. The entry is `reading.read_config`.

`tables` lists the keys and `value_types` what they may be; `document` reads them, `toml_lines` finds the line of each
key, `mistakes` collects all errors, `preflight` is `serve --check`.
"""

from unbroken.gateway.config.reading import FILE, ServeOptions, read_config, settings_from_options, store_url

__all__ = ["FILE", "ServeOptions", "read_config", "settings_from_options", "store_url"]
