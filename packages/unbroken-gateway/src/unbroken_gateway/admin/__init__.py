"""What operators look at: health, models, metrics, the status page and the OpenAPI document.

The entry is `pages.Pages`; `stats.Stats` counts what they show.
"""
