"""TLS outside, plain TCP inside, on the loopback: `python -m tests.operators.tls_proxy PORT TARGET CERT KEY CA`.

Asks its clients for a certificate of the same CA. A process of its own, so that what it leaves open is nobody's test's.
"""

import asyncio
import ssl
import sys


async def serve(port: int, target: int, context: ssl.SSLContext) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_pipe(reader, inner_writer), _pipe(inner_reader, writer))

    server = await asyncio.start_server(accepted, "127.0.0.1", port, ssl=context)
    await server.serve_forever()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


if __name__ == "__main__":
    port, target, certificate, key, authority = sys.argv[1:]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    asyncio.run(serve(int(port), int(target), context))
