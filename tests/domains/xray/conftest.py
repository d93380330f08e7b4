"""Makers of small DICOM and PNG files; no test here needs a network or a file of somebody's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MakeDicom = Callable[..., Path]


@pytest.fixture
def make_dicom(tmp_path: Path) -> MakeDicom:
    """``make_dicom(name, stored, **header)`` writes uint16 ``[h, w]`` as an uncompressed chest film."""

    def make(name: str, stored: np.ndarray, folder: Path | None = None, **header: Any) -> Path:
        from pydicom.dataset import FileDataset, FileMetaDataset
        from pydicom.uid import ExplicitVRLittleEndian, generate_uid

        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
        meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[name])
        meta.TransferSyntaxUID = header.pop("syntax", ExplicitVRLittleEndian)
        path = (folder or tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID = meta.MediaStorageSOPClassUID
        dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
        usual = {
            "Modality": "DX",
            "BodyPartExamined": "CHEST",
            "PatientID": "P1",
            "PhotometricInterpretation": "MONOCHROME2",
            "SamplesPerPixel": 1,
            "BitsAllocated": 16,
            "BitsStored": 12,
            "HighBit": 11,
            "PixelRepresentation": 0,
            "Rows": stored.shape[0],
            "Columns": stored.shape[1],
            "PixelData": stored.astype("<u2").tobytes(),
        }
        for keyword, value in {**usual, **header}.items():
            if value is not None:
                setattr(dataset, keyword, value)
        dataset.save_as(path, enforce_file_format=True)
        return path

    return make


@pytest.fixture
def ramp() -> np.ndarray:
    """uint16 ``[64, 64]`` that rises from 0 at the left to 4095 at the right."""
    return np.tile(np.linspace(0, 4095, 64).round().astype("uint16"), (64, 1))
