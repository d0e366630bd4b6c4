import hashlib

import pytest
import requests

from app import wiring
from app.blobs import BlobStore
from app.errors import ImageFailed, Unavailable


@pytest.fixture
def blobs(settings):
    return wiring.worker_blobs(settings)


def _put(blobs, key, data=b"picture"):
    return blobs.put(key, data, "image/png", hashlib.sha256(data).digest())


def test_put_and_presigned_read(blobs):
    stored = _put(blobs, "jobs/job_1/0/1.png")
    answer = requests.get(blobs.presign(stored.key), timeout=5)
    assert answer.status_code == 200
    assert answer.content == b"picture"
    assert answer.headers["content-type"] == "image/png"
    assert stored.sha256 == hashlib.sha256(b"picture").hexdigest()


def test_presigned_urls_are_v4_short_and_cannot_be_bent(blobs, settings):
    _put(blobs, "jobs/job_2/0/1.png")
    url = blobs.presign("jobs/job_2/0/1.png")
    assert "X-Amz-Signature=" in url
    assert f"X-Amz-Expires={settings.presign_s}" in url
    assert requests.get(url.replace("job_2", "job_1"), timeout=5).status_code == 403
    assert requests.get(url.split("?")[0], timeout=5).status_code == 403


def test_presigned_urls_name_the_public_endpoint(servers):
    public = servers.settings(s3_public_endpoint="https://pictures.example/")
    assert wiring.api_blobs(public).presign("k").startswith("https://pictures.example/planpaint/k?")


def test_nobody_gets_in_without_credentials(settings):
    assert requests.get(settings.s3_endpoint + "/", timeout=5).status_code == 403
    assert requests.get(settings.s3_endpoint + "/planpaint?list-type=2", timeout=5).status_code == 403


def test_no_port_of_the_server_takes_an_unsigned_upload(servers):
    for port in servers.s3_ports:
        for path in ("/buckets/planpaint/x", "/planpaint/x", "/submit"):
            try:
                answer = requests.post(f"http://127.0.0.1:{port}{path}", files={"file": b"x"}, timeout=5)
            except requests.ConnectionError:
                continue
            assert answer.status_code >= 400, (port, path, answer.status_code)


def test_an_upload_whose_bytes_do_not_match_its_checksum_is_refused(blobs):
    with pytest.raises(ImageFailed) as failed:
        blobs.put("jobs/job_3/0/1.png", b"picture", "image/png", hashlib.sha256(b"other").digest())
    assert failed.value.code == "storage_refused"


def test_wrong_credentials_are_a_refusal_that_may_be_retried(servers):
    with pytest.raises(ImageFailed) as failed:
        _put(wiring.worker_blobs(servers.settings(s3_secret_key="wrong")), "k")
    assert failed.value.retryable


def test_a_server_out_of_reach_is_unavailable(servers):
    blobs = BlobStore(servers.settings(s3_endpoint="http://127.0.0.1:1"), timeout_s=1)
    for call in (lambda: _put(blobs, "k"), blobs.ping, blobs.ensure_bucket, lambda: blobs.delete("k")):
        with pytest.raises(Unavailable):
            call()


def test_delete_removes_and_may_be_repeated(blobs):
    stored = _put(blobs, "jobs/job_4/0/1.png")
    blobs.delete(stored.key)
    blobs.delete(stored.key)
    assert requests.get(blobs.presign(stored.key), timeout=5).status_code == 404


def test_the_bucket_may_be_ensured_again(blobs):
    blobs.ensure_bucket()
    blobs.ping()
