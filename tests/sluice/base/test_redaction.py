"""Forms of credentials that must be redacted, and texts that must not change."""

import ast
import io
import json
import logging
from pathlib import Path
from urllib.parse import quote

import pytest

from sluice.base.errors import SourceError
from sluice.base.redaction import has_credential, redact, redact_command, redact_data, redact_logs

SECRET = "s3cr3tValue9"
ODD = f"p@{SECRET}:w/{SECRET}?x#&{SECRET}"
ROOT = Path(__file__).resolve().parents[3]

FORMS = [
    f"https://ada:{SECRET}@host/x.csv",
    f"postgresql://ada:{SECRET}@host:5432/db",
    f"postgresql+psycopg://ada:{ODD}@host/db",
    f"postgresql://ada:{quote(ODD, safe='')}@host/db",
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


@pytest.mark.parametrize("text", FORMS)
def test_no_form_of_a_secret_is_left(text):
    found = redact(text)

    assert SECRET not in found
    assert "***" in found
    assert redact(found) == found
    assert has_credential(text)


@pytest.mark.parametrize(
    ("text", "left"),
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
def test_the_rest_of_a_text_is_unchanged(text, left):
    assert redact(text) == left


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
def test_a_text_without_a_secret_is_unchanged(text):
    assert redact(text) == text
    assert not has_credential(text)


@pytest.mark.slow
def test_the_texts_of_this_project_are_unchanged():
    """The strings of the sources, none of which is a secret: messages, help, SQL, HTML."""
    paths = [path for part in ("sluice", "assets") for path in (ROOT / part).rglob("*.py")]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    texts = {str(n.value) for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str}

    assert len(texts) > 1_000
    assert [redact(text) for text in texts if redact(text) != text] == []


@pytest.mark.slow
def test_hostile_texts_are_redacted_quickly():
    """Each text has many beginnings of a form, but no end."""
    for part in ("a://b:", "password=", "'password': '", "://", "https://x", "\\", "token=' ", "a"):
        text = part * (60_000 // len(part))
        assert len(redact(text)) <= 4 * len(text)


def test_an_error_contains_no_secret():
    error = SourceError(
        f"cannot read https://u:{SECRET}@h", cause=f"token={SECRET}", fix=f"--password {SECRET}"
    )

    assert SECRET not in f"{error} {error.what} {error.cause} {error.fix} {error.args}"


def test_plain_data_is_redacted_by_key_and_by_text():
    data = {
        "database": {"password": SECRET, "port": 5432, "user": "ada"},
        "urls": [f"https://u:{SECRET}@h", "https://h"],
        "token": 5,
        "pair": (SECRET[:0], None, 1.5, True),
        "api_key": "${KEY}",
    }

    found = redact_data(data)

    assert found == data | {
        "database": {"password": "***", "port": 5432, "user": "ada"},
        "urls": ["https://u:***@h", "https://h"],
    }


def test_a_command_line_is_redacted_word_by_word():
    words = ["sluice", "run", "x", "--password", f"{SECRET} x", f"--set=a=https://u:{SECRET}@h"]

    assert redact_command(words) == (
        *words[:3],
        "--password",
        "***",
        "--set=a=https://u:***@h",
    )


def test_logs_and_their_tracebacks_are_redacted():
    before = logging.getLogRecordFactory()
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
        logging.setLogRecordFactory(before)

    assert "read https://u:***@h with 3 rows\n" in stream.getvalue()
    assert "ValueError: https://u:***@h" in stream.getvalue()
    assert "Traceback" in stream.getvalue()
    assert SECRET not in stream.getvalue()
