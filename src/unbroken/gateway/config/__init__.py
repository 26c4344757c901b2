"""`unbroken.toml` and the options of `unbroken serve` become settings.

`tables` says which keys there are and `values` what they may be; `document` reads, `lines` knows where in the file each
key stands, `mistakes` tells all that is wrong at once; `reading` is where it begins.
"""

from unbroken.gateway.config.reading import FILE, ServeOptions, read_config, settings_from_options, store_url

__all__ = ["FILE", "ServeOptions", "read_config", "settings_from_options", "store_url"]
