"""Runs the guarantees of this package on an optimizer of your own.

```python
import tf_graft as tg

tg.testing.check(AdaBelief, learning_rate=0.1)
```
"""

from tf_graft.testing.checking import Result, check, check_on_mesh

__all__ = ["Result", "check", "check_on_mesh"]
