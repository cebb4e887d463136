"""A loader whose module starts a thread when it is imported, as some libraries do."""

import threading
import time

from tests.runtime.family import load as load

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
