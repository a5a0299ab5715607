"""A live page of limiters, for people without Grafana: an ASGI application to mount.

```python
from aiolimit import Limiter
from aiolimit.dashboard import Dashboard

limiter = Limiter("100/s", name="search")
page = Dashboard(limiter)  # app.mount("/limits", page), or uvicorn.run(page)
```
"""

from aiolimit.dashboard.app import Dashboard

__all__ = ["Dashboard"]
