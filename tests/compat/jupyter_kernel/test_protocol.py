"""The tests of `jupyter_kernel_test` for the protocol of kernels."""

from __future__ import annotations

from typing import ClassVar

import jupyter_kernel_test
import pytest

pytestmark = pytest.mark.req("compat.jupyter")


class TestIngleKernel(jupyter_kernel_test.KernelTests):
    kernel_name = "ingle"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys\nprint('test', file=sys.stderr)"
    completion_samples: ClassVar = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "str.upp", "matches": {"upper"}},
    ]
    complete_code_samples: ClassVar = ["1", "print('hello')", "def f(x):\n  return x*2\n\n\n", "%who"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2", "if True:"]
    invalid_code_samples: ClassVar = ["import = 7q", "x = = 1"]
    code_generate_error = "1/0"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}, {"code": "'a'", "result": "'a'"}]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import SVG, display; display(SVG('<svg/>'))", "mime": "image/svg+xml"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
