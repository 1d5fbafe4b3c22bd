"""The data source "strictq", from which Spark gets readers and writers. Imported late, with pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .._platform.extras import need_spark
from ._option_names import require_known_somewhere
from ._options import read_columns
from ._paths import is_many
from ._plain import plain
from ._tables import is_creation, named_options, of_table, options_for, with_options, without_metadata

if TYPE_CHECKING:
    from .batch import BatchReader
    from .fleet import FleetReader
    from .sink import BatchWriter, StreamWriter
    from .source import StreamReader


@plain("__init__", "schema", "reader", "streamReader", "writer", "streamWriter")
class StrictqDataSource(DataSource):
    """Queues as a table of messages. Spark creates these objects in separate processes.

    Invalid options are reported as soon as one is created: at `load` or `save`, not when the query runs.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        need_spark()  # Spark may load this class by itself, without the checks of `register`
        require_known_somewhere(named_options(options) if is_creation(options) else options)

    @classmethod
    def name(cls) -> str:
        return "strictq"

    def schema(self) -> StructType:
        if is_creation(self.options):
            named = named_options(self.options)
            return with_options(read_columns(named), named)
        return read_columns(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        from .batch import BatchReader

        return BatchReader(options_for(self.options, schema, "table"), without_metadata(schema))

    def streamReader(self, schema: StructType) -> StreamReader | FleetReader:
        options, plain_schema = options_for(self.options, schema, "stream"), without_metadata(schema)
        if is_many(options):
            from .fleet import FleetReader

            return FleetReader(options, plain_schema)
        from .source import StreamReader

        return StreamReader(options, plain_schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from .sink import BatchWriter

        options, table = options_for(self.options, schema, "write"), of_table(schema) is not None
        return BatchWriter(options, schema, overwrite=overwrite, table=table)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from .sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
