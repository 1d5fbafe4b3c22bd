"""The data source "strictq": where Spark asks for readers and writers. Imported late, with pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ._options import columns

if TYPE_CHECKING:
    from .batch import BatchReader
    from .sink import BatchWriter, StreamWriter
    from .source import StreamReader


class StrictqDataSource(DataSource):
    """A queue's directory as a table of messages. Spark makes these objects in processes of its own."""

    @classmethod
    def name(cls) -> str:
        return "strictq"

    def schema(self) -> StructType:
        return columns(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        from .batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from .source import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from .sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from .sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
