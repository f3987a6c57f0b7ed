"""What goes with a published image, so that others need not believe us: made, signed, read back and checked.

licences.py       what packages say about their licences
sbom.py           bills of materials: SPDX 2.3 and CycloneDX 1.6
provenance.py     SLSA provenance 1.0 as an in-toto statement
bundle.py         all documents of one image, as artefacts
signing_keys.py   keys as cosign keeps them, and plain ones
signature.py      signatures as cosign writes them
publish.py        attaching all that to an image in a registry
published.py      reading an image and what is attached to it
inspection.py     showing that, or an image of the store
verification.py   checking that
whole.py          the same for the index of several platforms
"""
