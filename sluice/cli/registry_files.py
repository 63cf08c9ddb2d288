"""``sluice registry export|import|new-key|sign``: version files, key pairs, signed log."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sluice.base.current_user import current_user
from sluice.base.errors import SettingsError
from sluice.base.pluralize import pluralize
from sluice.cli.output import print_json
from sluice.cli.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    VersionNumber,
    artifact_store,
    open_ledger,
    pipeline_import_paths,
    read_key,
    show_on_stderr,
    show_result,
)
from sluice.cli.registry_baseline import MLFLOW, import_baseline
from sluice.registry import display
from sluice.registry.public_keys import ExporterPrivateKey, TrustedKeys, make_key_pair
from sluice.registry.transfer import export_version, import_version

TargetFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="File to write.", show_default=False)
]
FileOrModel = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|mlflow:/NAME/VERSION",
        help="A file written by sluice registry export, or a registered model of MLflow.",
        show_default=False,
    ),
]


def export_file(
    model: Model,
    version: VersionNumber,
    file: TargetFile,
    private_key: Annotated[
        Path | None,
        typer.Option(
            envvar="SLUICE_PRIVATE_KEY",
            help="File with the Ed25519 private key that signs the version file, from sluice "
            "registry new-key.",
            show_default=False,
        ),
    ] = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Write one version to a file: lineage, receipts, history, weights and digests.

    The same version gives the same bytes. Everybody who has the public key can verify a file that
    is signed with a private key. A file that is signed with --key can be verified only with the
    same secret key.
    """
    with open_ledger() as ledger:
        digest = export_version(
            ledger,
            model,
            version,
            store=artifact_store(),
            target=file,
            key=read_key(key),
            private_key=None if private_key is None else ExporterPrivateKey.read(private_key),
        )
    if as_json:
        print_json({"model": model, "version": version, "file": str(file), "sha256": digest})
    else:
        show_result(Text(f"{model} version {version} was written to {file} (SHA-256 {digest})."))


def import_file(
    file: FileOrModel,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="MODULE:CLASS",
            help="Import path of a workload or architecture that the version uses and whose code "
            "may run here; may be repeated. It is required even if the file contains this code. "
            "Always trusted is the code of Sluice, of the shipped pipeline with the same name, and "
            "of versions of the model that were trained here. For a model of MLflow, give "
            "mlflow:/NAME/VERSION: the model is then loaded and run.",
            show_default=False,
        ),
    ] = None,
    trusted_keys: Annotated[
        Path | None,
        typer.Option(
            envvar="SLUICE_TRUSTED_KEYS",
            help="Text file with a line 'NAME ed25519:KEY' per trusted key. The version file must "
            "be signed with one of these keys.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            help="With mlflow:/NAME/VERSION: name or file of the pipeline that gets the "
            "predictions of the model as its baseline.",
            show_default=False,
        ),
    ] = None,
    predictions: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="With mlflow:/NAME/VERSION: CSV or Parquet file among the artifacts of the "
            "model's run, with a column 'row' (index of the features) and a column per output.",
            show_default=False,
        ),
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            help="Address of the MLflow server. Default: tracking.mlflow.uri of the pipeline.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=1, max=86_400, help="Time limit of an import from MLflow [s].")
    ] = 600.0,
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Register the version of a file in state dev, or import the predictions of an MLflow model.

    Every part of the file is verified, and no code in the file is run. The receipts in the file are
    stored, but the version can be promoted only after the gates pass here. With trusted keys, or
    with a key, the file must be signed. The signer is printed and recorded in the history.

    With mlflow:/NAME/VERSION in place of the file, the predictions of this model are stored. They
    become the baseline of a pipeline that has baseline.predictions: mlflow:/NAME/VERSION.
    """
    if str(file).startswith(MLFLOW):
        receipt = import_baseline(
            str(file),
            pipeline=pipeline,
            predictions=predictions,
            uri=uri,
            trust=trust or (),
            timeout_s=timeout_s,
            actor=actor or current_user(),
            key=key,
        )
        if as_json:
            print_json(receipt.model_dump(mode="json") | {"digest": receipt.digest})
        else:
            show_result(
                Text(
                    f"{receipt.reason} They are the baseline of {receipt.subject['pipeline']} if "
                    f"its file has baseline: {{predictions: {file}}}, until its first promotion."
                )
            )
        return
    if pipeline is not None or predictions is not None:
        raise SettingsError(
            f"--pipeline and --predictions require an import from MLflow, got the file {file}.",
            fix="Leave these options out, or give mlflow:/NAME/VERSION in place of the file.",
        )
    with open_ledger(key, create=True) as ledger:
        import_result = import_version(
            ledger,
            file,
            store=artifact_store(),
            actor=actor or current_user(),
            key=read_key(key),
            trusted_keys=None if trusted_keys is None else TrustedKeys.read(trusted_keys),
            local_paths_of=pipeline_import_paths,
            trusted_paths=trust or (),
        )
    version = import_result.version
    if as_json:
        print_json(
            {
                "model": version.model,
                "version": version.number,
                "state": version.state,
                "created": import_result.created,
                "signed_by": import_result.signed_by,
            }
        )
        return
    note = "" if import_result.created else " It was already registered; nothing was changed."
    registered_text = f"{version.model} version {version.number}, {version.state}.{note}"
    show_result(Text(f"{registered_text} The file is {import_result.signed_by}."))


def new_key(
    file: TargetFile,
    name: Annotated[
        str,
        typer.Option(
            help="Name of the key's owner, shown to users who trust the key.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Create an Ed25519 key pair that signs exported versions.

    Keep the private key secret. Give the line of the .pub file to the users who import your
    versions, over a channel that nobody else can write to. They add the line to their file of
    trusted keys.
    """
    public_key = make_key_pair(file, name=name)
    if as_json:
        print_json({"private_key": str(file), "name": name, "public_key": public_key.text})
    else:
        show_result(Text(f"The private key is in {file}, the public key in {file}.pub:"))
        show_result(Text(f"{name} {public_key.text}"))


def sign(
    actor: Actor = None,
    key: KeyFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Sign without confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sign the lines of the log that have no signature.

    The lines are shown before the confirmation, with --json on stderr. Lines without a signature
    were written without a key, or not by Sluice. Only this command signs them, and the signature
    records that you confirmed them. Keep the printed digest in another place: the digest covers
    everything that the registry contains now.
    """
    if key is None:
        raise SettingsError(
            "Signing requires a key file.",
            fix="Give one with --key or SLUICE_REGISTRY_KEY. To create one: "
            "openssl rand -out registry.key 32",
        )
    with open_ledger(key) as ledger:
        log_head, lines = ledger.unsigned_lines()
        if lines and not as_json:
            show_result(display.unsigned_table(lines))
        if lines and not yes:
            if as_json:  # stdout must contain only JSON
                show_on_stderr(display.unsigned_table(lines))
            question = f"Sign {pluralize(len(lines), 'line')} without a signature?"
            typer.confirm(question, abort=True, err=True)
        ledger.sign(log_head, actor=actor or current_user())
    if as_json:
        signed_lines = [line.model_dump(mode="json") for line in lines]
        print_json(
            {"lines": log_head.num_lines, "digest": log_head.digest, "covered": signed_lines}
        )
    elif lines:
        show_result(
            Text(
                f"Signed {pluralize(len(lines), 'line')}; the digest of the last line is "
                f"{log_head.digest}."
            )
        )
    else:
        show_result(
            Text(
                f"All lines are signed already ({pluralize(log_head.num_lines, 'line')}); the "
                f"digest of the last line is {log_head.digest}."
            )
        )
