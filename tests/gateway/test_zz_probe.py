import hostler
from hostler import Harness, sandbox
from tests.gateway.conftest import *
from tests.gateway.conftest import _proxy
import pytest
def test_x(gateway, workspace, monkeypatch):
    for h, m, k, p in ((Harness.CODEX,"coder",None,"hi"),(Harness.CLAUDE_CODE,"coder","sk-wrong-1","hi"),(Harness.CLAUDE_CODE,"coder",None,'@@[{"error":429,"retry_after":1},{"error":429}]@@'),(Harness.CLAUDE_CODE,"coder",None,'@@[{"error":529}]@@'),(Harness.CLAUDE_CODE,"coder",None,'@@[{"drop":true}]@@'),(Harness.CLAUDE_CODE,"coder",None,'@@[{"error":400, "message":"bad thing"}]@@'),(Harness.CODEX,"coder-openai",None,'@@[{"error":429}]@@')):
        t=time.monotonic()
        gateway.models.clear()
        r = hostler.agent(h, p, model="litellm_proxy/"+m, api_key=k)
        print(h, m, p, r.stop_reason, r.error, r.cost, r.usage, r.text, round(time.monotonic()-t,1), len(gateway.models.calls))
