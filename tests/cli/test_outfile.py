"""Names of files ask for what goes into them. (What is written: test_generate.)"""

from pathlib import Path

import pytest

from omnistage.cli.outfile import OutFile
from omnistage.core.errors import InvalidRequestError
from omnistage.core.output import OmniRequestOutput

NOTHING = OmniRequestOutput("r", 0, "text", finished=True)


@pytest.mark.parametrize(
    ("name", "modality", "form"),
    [("a.WAV", "audio", "wav"), ("a.ogg", "audio", "opus"), ("a.jpg", "image", "jpeg"), ("a.b.png", "image", "png")],
)
def test_a_name_says_what_it_is_for(tmp_path: Path, name: str, modality: str, form: str) -> None:
    """Fault: sound in a file that is called a picture."""
    file = OutFile.of(tmp_path / name)
    assert (file.modality, file.form) == (modality, form)
    with pytest.raises(InvalidRequestError, match="as the answer has no"):
        file.save(NOTHING)
    assert not file.path.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.gif", "ends in .wav, .flac"),
        ("a", "ends in"),
        ("none/a.png", "a folder that exists"),
        ("d.png", "can be written"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    """Fault: it is found out after the answer was made."""
    (tmp_path / "d.png").mkdir()
    with pytest.raises(InvalidRequestError) as caught:
        OutFile.of(tmp_path / name)
    assert caught.value.field == "out" and said in caught.value.message
