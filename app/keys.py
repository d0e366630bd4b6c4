"""Every key the program uses in Redis, its type and its meaning.

planpaint:job:<job>               hash    the request and the job's counters
planpaint:image:<job>:<index>     hash    THE TRUTH about one image: state, fence, attempts, prior ids, object
planpaint:events:<job>            stream  the job's event log; entry id is <sequence>-0
planpaint:due                     zset    every image that has not ended -> server ms when the sweeper must look
planpaint:waiting:<queue>         zset    images that wait for a worker -> server us since when; ar by priority, dit
planpaint:line:<priority>:<owner> zset    images of a key that wait for their turn, unhinted -> server us since when
planpaint:turn:<priority>:<owner> set     images of a key that wait for AR and are hinted
planpaint:counts                  hash    images in each state that is not an end
planpaint:active                  hash    owner -> images that have not ended
planpaint:api-keys                hash    id of every API key, also of revoked ones -> SHA-256 of its secret
planpaint:api-key:<h>             hash    id, name, scopes, limits and times of the key with this SHA-256
planpaint:quota:<owner>:<policy>  string  server ms at which a token bucket is full again
planpaint:pace                    hash    moving means of stage times, for estimates
planpaint:jobs:<owner>            zset    the owner's jobs -> server ms of creation
planpaint:expiry                  zset    every ended job -> server ms when it is to be removed
planpaint:gone:<job>              string  tombstone of a removed job: deleted or expired
planpaint:trash                   zset    jobs whose objects are to be removed -> server ms of the next try
planpaint:idempotency:<owner>:<h> hash    fingerprint, job and stored answer of one Idempotency-Key (its SHA-256)
planpaint:changes                 channel ids of jobs, the moment that they change
planpaint:ar:<which>              stream  hints for AR workers by priority, and of returned images; group "ar"
planpaint:dit                     list    hints for DiT workers (Celery's queue, written by kombu alone)
planpaint:outbox                  zset    webhook events to deliver, <job>:<sequence> -> server ms of next attempt
planpaint:delivery:<job>:<seq>    hash    what became of a delivery
planpaint:endpoint:<owner>:<h>    hash    how a webhook URL (its SHA-256) has answered: failing, paused, gone
planpaint:webhook-test:<test>     hash    a test event and its receiver
planpaint:epoch                   string  random name of this store; who has seen it notices when its data is lost
planpaint:dead                    zset    dead letters: failed images, unreadable messages -> server ms since when
planpaint:dead-message:<id>       hash    one message that could not be read; those of images are in their records
planpaint:workers                 zset    worker name -> server ms of its last heartbeat
planpaint:worker:<name>           hash    role, instance, pid, host, device, state
planpaint:drained                 set     names of workers, and role:<role>, that are to take nothing new
planpaint:stats                   hash    totals since the store was made
planpaint:webhook-secret          string  the signing secret when settings have none
planpaint:webhook-secret:previous string  the one before it, until it is no longer signed with
"""

import hashlib

from app.domain.job import Priority

PREFIX = "planpaint:"

DUE = PREFIX + "due"
AR_RETURNED = PREFIX + "ar:returned"
AR_REALTIME = PREFIX + "ar:realtime"
AR_BATCH = PREFIX + "ar:batch"
#: In the order in which they are read.
AR_STREAMS = (AR_RETURNED, AR_REALTIME, AR_BATCH)
AR_GROUP = "ar"
DIT_QUEUE = "dit"
DIT_LIST = PREFIX + DIT_QUEUE
OUTBOX = PREFIX + "outbox"
WORKERS = PREFIX + "workers"
STATS = PREFIX + "stats"
EPOCH = PREFIX + "epoch"
WEBHOOK_SECRET = PREFIX + "webhook-secret"
WEBHOOK_SECRET_BEFORE = PREFIX + "webhook-secret:previous"
WAITING_REALTIME = PREFIX + "waiting:realtime"
WAITING_BATCH = PREFIX + "waiting:batch"
WAITING_DIT = PREFIX + "waiting:dit"
COUNTS = PREFIX + "counts"
PACE = PREFIX + "pace"
EXPIRY = PREFIX + "expiry"
TRASH = PREFIX + "trash"
CHANGES = PREFIX + "changes"
ACTIVE = PREFIX + "active"
DEAD = PREFIX + "dead"
DRAINED = PREFIX + "drained"
API_KEYS = PREFIX + "api-keys"
#: Starts of the names that `line` and `turn` make; the scripts go on with "<priority>:<owner>".
LINES = PREFIX + "line:"
TURNS = PREFIX + "turn:"


def ar_stream(priority: Priority) -> str:
    return AR_BATCH if priority is Priority.BATCH else AR_REALTIME


def waiting(priority: Priority) -> str:
    return WAITING_BATCH if priority is Priority.BATCH else WAITING_REALTIME


def line(priority: Priority, owner: str) -> str:
    return f"{LINES}{priority.value}:{owner}"


def turn(priority: Priority, owner: str) -> str:
    return f"{TURNS}{priority.value}:{owner}"


def api_key(digest: str) -> str:
    return f"{PREFIX}api-key:{digest}"


def quota(owner: str, policy: str) -> str:
    return f"{PREFIX}quota:{owner}:{policy}"


def job(job_id: str) -> str:
    return f"{PREFIX}job:{job_id}"


def image(job_id: str, index: int) -> str:
    return f"{PREFIX}image:{job_id}:{index}"


def events(job_id: str) -> str:
    return f"{PREFIX}events:{job_id}"


def delivery(job_id: str, sequence: int) -> str:
    return f"{PREFIX}delivery:{job_id}:{sequence}"


def dead_message(message_id: str) -> str:
    return f"{PREFIX}dead-message:{message_id}"


def worker(name: str) -> str:
    return f"{PREFIX}worker:{name}"


def jobs_of(owner: str) -> str:
    return f"{PREFIX}jobs:{owner}"


def tombstone(job_id: str) -> str:
    return f"{PREFIX}gone:{job_id}"


def idempotency(owner: str, key: str) -> str:
    return f"{PREFIX}idempotency:{owner}:{_digest(key)}"


def endpoint(owner: str, url: str) -> str:
    return f"{PREFIX}endpoint:{owner}:{_digest(url)}"


def webhook_test(test_id: str) -> str:
    return f"{PREFIX}webhook-test:{test_id}"


def _digest(text: str) -> str:
    """What callers name is never part of a key as it is."""
    return hashlib.sha256(text.encode()).hexdigest()
