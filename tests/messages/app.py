"""An app that makes one call and waits for its end, to be killed in it: ``app.py JSON``."""

from __future__ import annotations

import json
import sys

import hostler
from hostler.testing.fake_runtime import FAKE

job = json.loads(sys.argv[1])
harness = hostler.create_harness(host=hostler.local_host(job["data_dir"]), runtime=FAKE, **job["options"])
stream = hostler.stream_harness(harness=harness, session=job["key"], messages=job["messages"])
for event in stream:
    print(type(event).__name__, flush=True)
