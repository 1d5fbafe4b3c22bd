"""The history of a queue outside the queue: export to Parquet files, Spark queries over them, and plots of the results.

```python
import strictq
from strictq.history import export_history

with strictq.open("orders.strictq") as q:
    export_history(q, "orders-history")
```

`export_history` needs the extra `history`, `strictq.history.analytics` the extra `spark`, and `strictq.history.plots` the extra
`plot`. `import strictq.history` imports none of their packages.
Source: docs/howto/history.md
"""

from __future__ import annotations

from ._export import Exported, export_history

__all__ = ["Exported", "export_history"]
