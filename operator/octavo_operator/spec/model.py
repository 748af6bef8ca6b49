"""Which model is served, and how it is reached."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from octavo_operator import cel
from octavo_operator.spec.base import LINE, ObjectName, Part, SecretKeyRef, SecretRef

LOCAL_SCHEMES = frozenset({"pvc", "file"})


class Model(Part):
    """Which model is served."""

    model_config = ConfigDict(json_schema_extra=cel.MODEL)

    source: str = Field(
        min_length=8,
        max_length=1024,
        description="Where the checkpoint is. pvc://CLAIM/PATH reads a directory or GGUF file on a claim of the same "
        "namespace (mounted read-only); file:///PATH reads a path inside the engine image. hf://ORG/NAME[/FILE.gguf], "
        "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://HOST/PATH and oci://REGISTRY/REPOSITORY[:TAG|@sha256:DIGEST] "
        "are fetched: by each replica, or once for all with spec.cache.",
        json_schema_extra=cel.MODEL_SOURCE,
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        description="Branch, tag or commit of a hf:// source. Default: main. Every replica serves the commit it stood "
        "for when the spec was last changed; status.model.revision names it.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Bearer token for a hf:// or https:// source."
    )
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="Secret for an s3://, gs:// or oci:// source. Its keys are the names of the variables that the "
        "store's own clients read, such as AWS_ACCESS_KEY_ID; they are mounted as files.",
    )
    endpoint: str | None = Field(
        default=None,
        max_length=512,
        description="Address of a mirror of the hub (hf://) or the registry (oci://), or of the store (s3://, gs://): "
        "http://HOST[:PORT][/PATH] or https://...",
        json_schema_extra=cel.ENDPOINT,
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern=LINE,
        description="The model name clients send and metrics carry. Default: metadata.name.",
    )

    @property
    def scheme(self) -> str:
        """The source's scheme: pvc, file, hf, s3, gs, https or oci."""
        return self.source.partition("://")[0]

    @property
    def remote(self) -> bool:
        """Whether the checkpoint must be fetched before it can be read."""
        return self.scheme not in LOCAL_SCHEMES


class Cache(Part):
    """Where a fetched checkpoint is kept for all replicas, instead of once in each."""

    persistent_volume_claim: ObjectName = Field(
        description="Claim of the same namespace that the loader writes to and the replicas read from. "
        "ReadWriteMany; with ReadWriteOnce all replicas must fit on one node.",
    )
