"""The tools of trip.dph and packing.dph."""

from __future__ import annotations

from unbroken import tool


@tool(effect="read")
def get_weather(city: str) -> dict[str, str | int]:
    """The weather in a city."""
    return {"city": city, "degrees": 10 + 3 * len(city), "sky": "rain" if len(city) % 2 else "sun"}


@tool(effect="read")
def find_trains(to: str, start: str = "上海") -> dict[str, str]:
    """The next trains to a city."""
    return {"first": f"{start} 08:10 {to} 09:05", "last": f"{start} 21:40 {to} 22:35"}


@tool(effect="read")
def check_stock(item: str) -> dict[str, str | int]:
    """How many of an item are left."""
    return {"item": item, "left": len(item) % 3}
