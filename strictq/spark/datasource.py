"""The data source "strictq": where Spark asks for readers and writers. Imported late, with pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .. import _hints as hints
from .._errors import InvalidArgument
from .._extras import need_spark
from ._option_names import OF_TABLES, require_known_somewhere
from ._options import read_columns
from ._paths import is_many

if TYPE_CHECKING:
    from .batch import BatchReader
    from .fleet import FleetReader
    from .sink import BatchWriter, StreamWriter
    from .source import StreamReader


class StrictqDataSource(DataSource):
    """A queue's directory as a table of messages. Spark makes these objects in processes of its own.

    What is wrong with the options is said as soon as there is one of these: at `load` or `save`, not when the query runs.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        need_spark()  # Spark finds this class by itself, too, where `register` never looked
        if all(name in options for name in OF_TABLES[:2]):
            # It could be created, but is then read without any of its options, the path included.
            raise InvalidArgument("Spark gives a Python data source no options of a table", hint=hints.TEMPORARY_VIEW)
        require_known_somewhere(options)

    @classmethod
    def name(cls) -> str:
        return "strictq"

    def schema(self) -> StructType:
        return read_columns(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        from .batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader | FleetReader:
        if is_many(self.options):
            from .fleet import FleetReader

            return FleetReader(self.options, schema)
        from .source import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from .sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from .sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
