"""The history of a queue outside the queue: export to Parquet files, plots, and workers' estimates learned from it.

```python
import strictq
from strictq.history import export_history

with strictq.open("orders.strictq") as q:
    export_history(q, "orders-history")
```

`export_history` and `store_estimates` need the extra `history`, and `strictq.history.plots` the extra `plot`.
`import strictq.history` imports none of their packages.
Source: docs/howto/history.md
"""

from __future__ import annotations

from ._estimates import store_estimates
from ._export import Exported, export_history

__all__ = ["Exported", "export_history", "store_estimates"]
