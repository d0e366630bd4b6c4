"""Every key the program uses in Redis, its type and its meaning.

planpaint:job:<job>               hash    the request and the job's counters
planpaint:image:<job>:<index>     hash    THE TRUTH about one image: state, fence, attempts, prior ids, object
planpaint:events:<job>            stream  the job's event log; entry id is <sequence>-0
planpaint:due                     zset    every image that has not ended -> server ms when the sweeper must look
planpaint:ar                      stream  hints for AR workers, consumer group "ar"
planpaint:dit                     list    hints for DiT workers (Celery's queue, written by kombu alone)
planpaint:outbox                  zset    webhook events to deliver, <job>:<sequence> -> server ms of next attempt
planpaint:delivery:<job>:<seq>    hash    what became of a delivery
planpaint:workers                 zset    worker name -> server ms of its last heartbeat
planpaint:worker:<name>           hash    role, pid, host, device, state
planpaint:stats                   hash    totals since the store was made
planpaint:webhook-secret          string  the signing secret when settings have none
"""

from app.domain.job import Priority

PREFIX = "planpaint:"

DUE = PREFIX + "due"
AR_REALTIME = PREFIX + "ar:realtime"
AR_BATCH = PREFIX + "ar:batch"
AR_GROUP = "ar"
DIT_QUEUE = "dit"
DIT_LIST = PREFIX + DIT_QUEUE
OUTBOX = PREFIX + "outbox"
WORKERS = PREFIX + "workers"
STATS = PREFIX + "stats"
WEBHOOK_SECRET = PREFIX + "webhook-secret"


def ar_stream(priority: Priority) -> str:
    return AR_BATCH if priority is Priority.BATCH else AR_REALTIME


def job(job_id: str) -> str:
    return f"{PREFIX}job:{job_id}"


def image(job_id: str, index: int) -> str:
    return f"{PREFIX}image:{job_id}:{index}"


def events(job_id: str) -> str:
    return f"{PREFIX}events:{job_id}"


def delivery(job_id: str, sequence: int) -> str:
    return f"{PREFIX}delivery:{job_id}:{sequence}"


def worker(name: str) -> str:
    return f"{PREFIX}worker:{name}"
