"""All ways in which a request can prove who makes it: tokens, cookies, one-time codes and read-only links."""

from dataclasses import dataclass, field

from ingle.http.auth.codes import Codes
from ingle.http.auth.principals import Principals
from ingle.http.auth.shares import Shares
from ingle.http.auth.sign_ins import SignIns


@dataclass(frozen=True)
class Credentials:
    principals: Principals
    sign_ins: SignIns = field(default_factory=SignIns)
    codes: Codes = field(default_factory=Codes)
    shares: Shares = field(default_factory=Shares)
