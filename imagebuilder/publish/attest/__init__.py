"""Documents and signatures that let others check a published image: made, signed, read and verified.

licences.py       what packages say about their licences
sbom.py           bills of materials: SPDX 2.3 and CycloneDX 1.6
provenance.py     SLSA provenance 1.0 as an in-toto statement
bundle.py         all documents of one image, as artefacts
signing_keys.py   keys as cosign keeps them, and plain ones
signature.py      signatures as cosign writes them
publish.py        attaches documents and signatures to an image in a registry
published.py      reads an image and what is attached to it
inspection.py     describes an image, of a registry or of the store
verification.py   checks an image and its documents
whole.py          reads and checks the index of several platforms
"""
