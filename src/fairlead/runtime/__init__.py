"""asyncio tools that know nothing of tasks."""

__all__: tuple[str, ...] = ()
