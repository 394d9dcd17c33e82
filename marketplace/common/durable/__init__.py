"""Work that is done later, once, and survives a crash (``docs/how-to/durable-work.md``)."""
