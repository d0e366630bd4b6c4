import pytest

from app.errors import Misconfigured
from app.settings import Settings, load


def test_defaults_are_for_one_laptop():
    settings = load({})
    assert settings.api_host == "127.0.0.1"
    assert settings.checkpoint.name == "demo"
    assert settings.default_size == "256x256"
    assert settings.base_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLANPAINT_API_PORT", "0"),
        ("PLANPAINT_API_PORT", "many"),
        ("PLANPAINT_LEASE_S", "nan"),
        ("PLANPAINT_DEVICE", "tpu"),
        ("PLANPAINT_WEBHOOK_ALLOW", "10.0.0.0/33"),
        ("PLANPAINT_DEFAULT_SIZE", "big"),
        ("PLANPAINT_PRESIGN_S", "604801"),
    ],
)
def test_a_wrong_value_names_its_variable(name, value):
    with pytest.raises(Misconfigured, match=name):
        load({name: value})


def test_a_remote_server_shares_its_model_out_itself():
    with pytest.raises(Misconfigured, match=r"PLANPAINT_AR_BACKEND: .* cannot go with PLANPAINT_AR_TP"):
        load({"PLANPAINT_AR_BACKEND": "srt", "PLANPAINT_SRT_URL": "http://127.0.0.1:1", "PLANPAINT_AR_TP": "2"})


def test_an_unknown_variable_is_a_typo_and_refused():
    with pytest.raises(Misconfigured, match="PLANPAINT_API_PROT"):
        load({"PLANPAINT_API_PROT": "8000"})
    assert load({"OTHER": "x"})


def test_a_job_that_names_no_size_gets_one_that_the_checkpoint_draws(tmp_path):
    named = {"PLANPAINT_CHECKPOINT": str(tmp_path)}
    assert load(named).default_size == "1024x1024"
    assert load(named | {"PLANPAINT_DEFAULT_SIZE": "64x32"}).default_size == "64x32"
    assert load({"PLANPAINT_DEFAULT_SIZE": "64x32"}).default_size == "64x32"


def test_an_empty_variable_is_as_good_as_none():
    assert load({"PLANPAINT_DEFAULT_SIZE": "", "PLANPAINT_REDIS_CA": ""}) == load({})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"REDIS_CA": "none.pem"}, "REDIS_CA: .* cannot be read"),
        ({"S3_CA": "none.pem"}, "S3_CA: .* cannot be read"),
        ({"REDIS_CA": __file__, "REDIS_URL": "redis://h/0"}, "REDIS_CA: .*rediss://"),
        ({"REDIS_CERT": __file__}, "REDIS_KEY: .*REDIS_CERT"),
        ({"REDIS_KEY": __file__}, "REDIS_KEY: .*REDIS_CERT"),
        ({"INSTANCE": "a b"}, "INSTANCE"),
    ],
)
def test_files_for_tls_are_looked_at_before_anything_starts(values, named):
    tls = {"REDIS_URL": "rediss://h/0"} | values
    with pytest.raises(Misconfigured, match=named):
        load({f"PLANPAINT_{name}": value for name, value in tls.items()})


def test_without_tls_there_is_nothing_to_say_of_it():
    assert load({}).redis_tls == {}
    secured = load({"PLANPAINT_REDIS_URL": "rediss://h/0", "PLANPAINT_REDIS_CA": __file__}).redis_tls
    assert secured == {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": __file__}


def test_secrets_are_masked():
    settings = load({"PLANPAINT_REDIS_URL": "redis://:hunter2@h/0", "PLANPAINT_S3_SECRET_KEY": "hunter2"})
    assert "hunter2" not in str(settings.shown())
    assert "hunter2" not in repr(settings)
    assert settings.redis_url.get_secret_value() == "redis://:hunter2@h/0"


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load({}).api_port = 1  # type: ignore[misc]


def test_networks_are_read():
    networks = load({"PLANPAINT_WEBHOOK_ALLOW": "127.0.0.0/8, ::1/128"}).webhook_networks
    assert [str(network) for network in networks] == ["127.0.0.0/8", "::1/128"]


@pytest.mark.parametrize(
    ("host", "keys", "needed"),
    [
        ("127.0.0.1", "auto", False),
        ("127.8.8.8", "auto", False),
        ("::1", "auto", False),
        ("localhost", "auto", False),
        ("localhost.example", "auto", True),
        ("0.0.0.0", "auto", True),
        ("::", "auto", True),
        ("10.0.0.1", "auto", True),
        ("10.0.0.1", "off", False),
        ("127.0.0.1", "required", True),
    ],
)
def test_who_needs_a_key(host, keys, needed):
    assert load({"PLANPAINT_API_HOST": host, "PLANPAINT_API_KEYS": keys}).needs_keys is needed


def test_every_setting_is_in_the_readme():
    from pathlib import Path

    text = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    missing = [name for name in Settings.model_fields if f"PLANPAINT_{name.upper()}" not in text]
    assert missing == []
