"""The OCI image specification 1.1 as JSON Schema: what its tables say of each field, in our own words.

https://github.com/opencontainers/image-spec, v1.1: descriptor.md, manifest.md, image-index.md, config.md,
image-layout.md. Stricter than the specification where it leaves room that we do not use: no unknown fields.
"""

from __future__ import annotations

from typing import Any

_MEDIA_TYPE = {
    "type": "string",
    # RFC 6838, section 4.2: type and subtype of at most 127 characters each.
    "pattern": r"^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$",
}
_ANNOTATIONS = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "propertyNames": {"minLength": 1},
}
_DIGEST = {
    "type": "string",
    "anyOf": [
        {"pattern": "^sha256:[a-f0-9]{64}$"},
        {"pattern": "^sha512:[a-f0-9]{128}$"},
    ],
}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_DATE = {
    "type": "string",
    # RFC 3339, section 5.6.
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$",
}

PLATFORM: dict[str, Any] = {
    "type": "object",
    "required": ["architecture", "os"],
    "properties": {
        "architecture": {"type": "string", "minLength": 1},
        "os": {"type": "string", "minLength": 1},
        "os.version": {"type": "string"},
        "os.features": _TEXTS,
        "variant": {"type": "string"},
    },
    "additionalProperties": False,
}

DESCRIPTOR: dict[str, Any] = {
    "type": "object",
    "required": ["mediaType", "digest", "size"],
    "properties": {
        "mediaType": _MEDIA_TYPE,
        "digest": _DIGEST,
        "size": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
        "urls": {"type": "array", "items": {"type": "string", "format": "uri"}},
        "annotations": _ANNOTATIONS,
        "data": {"type": "string", "contentEncoding": "base64"},
        "artifactType": _MEDIA_TYPE,
        "platform": PLATFORM,
    },
    "additionalProperties": False,
}

MANIFEST: dict[str, Any] = {
    "type": "object",
    # The specification only asks that mediaType be used; what has none is guessed at by readers.
    "required": ["schemaVersion", "mediaType", "config", "layers"],
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.manifest.v1+json"},
        "artifactType": _MEDIA_TYPE,
        "config": DESCRIPTOR,
        # At least one is what the specification asks of everything portable.
        "layers": {"type": "array", "minItems": 1, "items": DESCRIPTOR},
        "subject": DESCRIPTOR,
        "annotations": _ANNOTATIONS,
    },
    "additionalProperties": False,
    # artifactType must be set where the config is the empty one.
    "if": {
        "properties": {
            "config": {"properties": {"mediaType": {"const": "application/vnd.oci.empty.v1+json"}}}
        }
    },
    "then": {"required": ["artifactType"]},
}

INDEX: dict[str, Any] = {
    "type": "object",
    "required": ["schemaVersion", "mediaType", "manifests"],
    "properties": {
        "schemaVersion": {"const": 2},
        "mediaType": {"const": "application/vnd.oci.image.index.v1+json"},
        "artifactType": _MEDIA_TYPE,
        "manifests": {"type": "array", "items": DESCRIPTOR},
        "subject": DESCRIPTOR,
        "annotations": _ANNOTATIONS,
    },
    "additionalProperties": False,
}

_SET = {"type": "object", "additionalProperties": {"type": "object", "maxProperties": 0}}

CONFIG: dict[str, Any] = {
    "type": "object",
    "required": ["architecture", "os", "rootfs"],
    "properties": {
        "created": _DATE,
        "author": {"type": "string"},
        "architecture": {"type": "string", "minLength": 1},
        "variant": {"type": "string"},
        "os": {"type": "string", "minLength": 1},
        "os.version": {"type": "string"},
        "os.features": _TEXTS,
        "config": {
            "type": "object",
            "properties": {
                "User": {"type": "string"},
                "ExposedPorts": {**_SET, "propertyNames": {"pattern": "^[0-9]{1,5}(/(tcp|udp))?$"}},
                "Env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
                "Entrypoint": _TEXTS,
                "Cmd": _TEXTS,
                "Volumes": _SET,
                "WorkingDir": {"type": "string"},
                "Labels": _ANNOTATIONS,
                "StopSignal": {"type": "string", "pattern": r"^(SIG[A-Z0-9+-]+|[0-9]+)$"},
                "ArgsEscaped": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
        "rootfs": {
            "type": "object",
            "required": ["type", "diff_ids"],
            "properties": {
                "type": {"const": "layers"},
                "diff_ids": {"type": "array", "minItems": 1, "items": _DIGEST},
            },
            "additionalProperties": False,
        },
        "history": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "created": _DATE,
                    "author": {"type": "string"},
                    "created_by": {"type": "string"},
                    "comment": {"type": "string"},
                    "empty_layer": {"type": "boolean"},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}

LAYOUT: dict[str, Any] = {
    "type": "object",
    "required": ["imageLayoutVersion"],
    "properties": {"imageLayoutVersion": {"const": "1.0.0"}},
    "additionalProperties": False,
}
