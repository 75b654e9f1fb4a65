"""Whether anybody listens at an address: what tells a process that died from a network that is cut.

    listens        connects, and hangs up: True, somebody accepts; False, the kernel there refuses; None, no
                   answer, or no way
    was_refused    whether this trouble of a connection attempt is a refusal, at every address of the name

Silence is no sign: a machine that is cut off, or stopped, refuses nothing.

Use: net/channel, server/early_fencing."""

import asyncio
import errno
import re
from typing import Final

ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


def was_refused(trouble: BaseException) -> bool:
    """asyncio puts the errors of several addresses into one text, without an errno."""
    if isinstance(trouble, ConnectionRefusedError):
        return True
    codes = ERRNO.findall(str(trouble)) if type(trouble) is OSError else []
    return bool(codes) and all(int(code) == errno.ECONNREFUSED for code in codes)


async def listens(host: str, port: int, timeout_s: float) -> bool | None:
    try:
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except (OSError, UnicodeError) as trouble:  # a TimeoutError is an OSError
        return False if was_refused(trouble) else None
    transport.close()
    return True
