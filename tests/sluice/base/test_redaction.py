"""Forms of credentials that must be redacted, and texts that must not change."""

import ast
import io
import json
import logging
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from sluice.base.errors import SourceError
from sluice.base.redaction import has_credential, redact, redact_command, redact_data, redact_logs
from tests.support.relative_timing import relative_duration

SECRET = "s3cr3tValue9"
SPECIAL_PASSWORD = f"p@{SECRET}:w/{SECRET}?x#&{SECRET}"
ROOT = Path(__file__).resolve().parents[3]

CREDENTIALS = [
    f"https://ada:{SECRET}@host/x.csv",
    f"postgresql://ada:{SECRET}@host:5432/db",
    f"postgresql+psycopg://ada:{SPECIAL_PASSWORD}@host/db",
    f"postgresql://ada:{quote(SPECIAL_PASSWORD, safe='')}@host/db",
    f"redis://:{SECRET}@host",
    f"mongodb+srv://ada:{SECRET}@a,b,c/db",
    f"mysql://ada:1234/{SECRET}@host/db",
    f"mysql://ada:it's{SECRET}@host/db",
    f"https://{SECRET}@github.com/x.git",
    f"sftp://ada:{SECRET}@host/~/x",
    f"from a://u:{SECRET}@h to b://v:{SECRET}@i, and c://w:{SECRET}@j",
    f"'postgresql://ada:{SECRET}@host/db' failed",
    f'{{"url":"postgresql://ada:{SECRET}@host/db","mail":"a@b.c"}}',
    f"https://host/x?password={SECRET}&a=1",
    f"postgresql://ada@host/db?sslmode=require&sslpassword={SECRET}",
    f"https://host/x?a=1&token={SECRET}",
    f"https://host/x?access_token={SECRET}",
    f"https://store/x?sv=2024&sig={SECRET}%2Fx",
    f"https://s3/x?X-Amz-Signature={SECRET}",
    f"https://s3/x?X-Amz-Credential={SECRET}%2F20260101%2Feu&X-Amz-Date=1",
    f"https://s3/x?X-Amz-Security-Token={SECRET}",
    f"https://s3/x?AWSAccessKeyId={SECRET}&Signature=1",
    f"s3://bucket/x?access_key={SECRET}&secret={SECRET}",
    f"https://host/x?api_key={SECRET}",
    f"https://host/x?client_secret={SECRET}",
    f"mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}%3BUID%3Dada",
    f"DRIVER=x;PWD={SECRET};UID=ada",
    f"host=h password={SECRET} dbname=x",
    f"host=h password='{SECRET} with \\' quote {SECRET}' dbname=x",
    f"host=h password = {SECRET} dbname=x",
    f"host=h password = '{SECRET} x' dbname=x",
    f"host=h sslpassword={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountKey={SECRET}==;x=1",
    f"Authorization: Bearer {SECRET}",
    f"authorization: Basic {SECRET}==",
    f"{{'Authorization': 'Bearer {SECRET}'}}",
    f"curl -H 'Authorization: token {SECRET}' http://x",
    f"sent Bearer eyJ{SECRET}.eyJ.sig",
    f"X-Api-Key: {SECRET}",
    f"PGPASSWORD={SECRET} psql",
    f"export WANDB_API_KEY={SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET} AWS_SESSION_TOKEN={SECRET}",
    f'HF_TOKEN="{SECRET}"',
    f"GITHUB_TOKEN='{SECRET}'",
    f'{{"password": "{SECRET}"}}',
    f'{{"password":"a\\"{SECRET}"}}',
    json.dumps({"body": json.dumps({"api_key": SECRET})}),
    f"{{'db_password': '{SECRET}'}}",
    f"  password: {SECRET}\n  user: ada",
    f"run --password {SECRET} --seed 3",
    f"run --api-key={SECRET}",
]


@pytest.mark.parametrize("text", CREDENTIALS)
def test_every_form_of_credential_is_redacted(text):
    redacted = redact(text)

    assert SECRET not in redacted
    assert "***" in redacted
    assert redact(redacted) == redacted
    assert has_credential(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://ada:x1@host:5432/db?a=1", "postgresql://ada:***@host:5432/db?a=1"),
        ("https://host/x?token=x1&page=2", "https://host/x?token=***&page=2"),
        ("host=h password='x 1' dbname=x", "host=h password='***' dbname=x"),
        ('{"password": "x1", "user": "ada"}', '{"password": "***", "user": "ada"}'),
        ("a://u:x1@h and b://v:x2@i/j", "a://u:***@h and b://v:***@i/j"),
        ("Authorization: Bearer x1", "Authorization: Bearer ***"),
        ("PWD%3Dx1%3BUID%3Dada", "PWD%3D***%3BUID%3Dada"),
    ],
)
def test_text_around_a_credential_is_unchanged(text, expected):
    assert redact(text) == expected


HARMLESS = [
    "http://localhost:3000/runs/1?x=a@b",
    "https://pypi.org/project/x",
    "postgresql://ada@host:5432/db",
    "postgresql://${USER}:${PASSWORD}@${HOST}:${PORT}/x?sslmode=require",
    "https://${TOKEN}@host/x",
    "host=h password=${PGPASSWORD}",
    "sqlite:////data/ada:x@home.db",
    "sqlite:///C:/data/bars.db",
    "ssh://git@github.com/x.git",
    "s3://bucket/key@v2",
    "mail a@b.c or see http://x:80/",
    "num_tokens=512 pad_token=0 end_token=50256 tokens=3",
    '{"pad_token": "<pad>", "num_tokens": 4, "token": null, "password": ""}',
    "password=None token=True secret=",
    "the password: it must have 16 characters",
    "a bearer of news",
    "Keep the secret safe; the token is read from a file.",
    "--token-file /etc/token --password-file x",
    "signature = inspect.signature(f); sign=1; design=2",
    "loss=0.1 accuracy=0.9 key=value sort_key=date",
    "volume_z > 2 and rsi_14 < 30",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_text_without_a_credential_is_unchanged(text):
    assert redact(text) == text
    assert not has_credential(text)


@pytest.mark.slow
def test_strings_of_the_source_code_are_unchanged():
    """The messages, help texts, SQL and HTML in the sources contain no credentials."""
    paths = [path for part in ("sluice", "assets") for path in (ROOT / part).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    texts = {str(n.value) for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str}

    assert len(texts) > 1_000
    assert [redact(text) for text in texts if redact(text) != text] == []


@pytest.mark.slow
def test_redaction_of_repeated_prefixes_takes_linear_time():
    """Each text repeats the beginning of a credential without its end."""
    for part in ("a://b:", "password=", "'password': '", "://", "https://x", "\\", "token=' ", "a"):
        short, long = (part * (length // len(part)) for length in (15_000, 60_000))

        assert len(redact(long)) <= 4 * len(long)
        # About 4 in linear time, 16 in quadratic time.
        assert relative_duration(partial(redact, long), partial(redact, short)) < 10


def test_error_texts_are_redacted():
    error = SourceError(
        f"cannot read https://u:{SECRET}@h", cause=f"token={SECRET}", fix=f"--password {SECRET}"
    )

    assert SECRET not in f"{error} {error.what} {error.cause} {error.fix} {error.args}"


def test_data_is_redacted_by_key_and_by_text():
    data = {
        "database": {"password": SECRET, "port": 5432, "user": "ada"},
        "urls": [f"https://u:{SECRET}@h", "https://h"],
        "token": 5,
        "pair": (SECRET[:0], None, 1.5, True),
        "api_key": "${KEY}",
    }

    redacted = redact_data(data)

    assert redacted == data | {
        "database": {"password": "***", "port": 5432, "user": "ada"},
        "urls": ["https://u:***@h", "https://h"],
    }


def test_arguments_of_a_command_line_are_redacted():
    words = ["sluice", "run", "x", "--password", f"{SECRET} x", f"--set=a=https://u:{SECRET}@h"]

    assert redact_command(words) == (
        *words[:3],
        "--password",
        "***",
        "--set=a=https://u:***@h",
    )


def test_log_messages_and_tracebacks_are_redacted():
    previous_factory = logging.getLogRecordFactory()
    stream = io.StringIO()
    handler, log = logging.StreamHandler(stream), logging.Logger("test_redaction")
    log.addHandler(handler)
    try:
        redact_logs()
        redact_logs()
        log.warning("read %s with %d rows", f"https://u:{SECRET}@h", 3)
        try:
            raise ValueError(f"https://u:{SECRET}@h")
        except ValueError:
            log.exception("it failed")
        log.warning("100% of %s")
    finally:
        logging.setLogRecordFactory(previous_factory)

    assert "read https://u:***@h with 3 rows\n" in stream.getvalue()
    assert "ValueError: https://u:***@h" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert SECRET not in stream.getvalue()
