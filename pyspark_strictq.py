"""Makes `format("strictq")` known to every Spark session: Spark imports modules named `pyspark_*` and registers their sources.

It lies outside the package, because Spark looks at top-level modules only. `strictq.spark.register` does more: it checks the
interpreter, and adds the listener that acks a query's last batch and reports on it.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    # Without what the extra brings there is nothing to register. An error here would fail the other Python sources of a session.
    from strictq.spark.datasource import StrictqDataSource as DefaultSource  # noqa: F401 - Spark looks for this name
