"""Two ways to protect rows with SQLAlchemy.

    DATABASE_URL=postgresql+asyncpg://localhost/app HOLDFAST_URL=postgres://localhost/app python3 sqlalchemy_transfer.py
"""

from __future__ import annotations

import asyncio
import os

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from holdfast import DistributedLock, StaleTokenError, lock_in_transaction, postgres_fence


async def main() -> None:
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS holdfast_example (id INT PRIMARY KEY, amount INT)"))
        await connection.execute(text("INSERT INTO holdfast_example VALUES (1, 0) ON CONFLICT DO NOTHING"))

    # The lock belongs to the transaction: the commit or rollback releases it. Nothing is stored, nothing expires.
    async with AsyncSession(engine) as session, session.begin():
        await lock_in_transaction(session, "account:1", blocking=True)
        await session.execute(text("UPDATE holdfast_example SET amount = amount + 10 WHERE id = 1"))

    # The lock is held over several transactions. Each presents its token before it reads, so that a process that was
    # paused for longer than its lease cannot write.
    async with DistributedLock() as lock, lock.lock("account:1") as lease:
        async with AsyncSession(engine) as session, session.begin():
            await postgres_fence(session).accept("account:1", lease)
            await session.execute(text("UPDATE holdfast_example SET amount = amount + 10 WHERE id = 1"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                await postgres_fence(session).accept("account:1", lease.fencing_token - 1)
        except StaleTokenError as error:
            print(f"refused: {error.code}")

    async with engine.begin() as connection:
        print("amount", (await connection.execute(text("SELECT amount FROM holdfast_example"))).scalar())
        await connection.execute(text("DROP TABLE holdfast_example"))
    await engine.dispose()


asyncio.run(main())
