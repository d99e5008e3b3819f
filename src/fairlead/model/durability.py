"""The one claim about durability: README, documentation, package and doctor say the same words."""

CLAIM = (
    "An accepted task survives the death of any client or worker, and that of the server as far as "
    "its append-only file goes."
)
