"""Pictures to files and back; what is no picture is told by name."""

import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

from omnistage.core.errors import InvalidRequestError
from omnistage.core.request import Media
from omnistage.serve import pictures
from omnistage.serve.pictures import PictureFormat, all_encoded, encoded, require_readable
from tests.serve.files import opened, picture_file

RNG = np.random.default_rng(0)
RAMP = np.add.outer(np.arange(24), np.arange(32))[:, :, None] * np.array([1, 2, 3])
PIXELS = (RAMP + RNG.integers(0, 4, RAMP.shape)).astype(np.uint8)


def image(data: bytes, where: str = "image") -> Media:
    return Media(kind="mask" if where == "mask" else "image", data=data, where=where)


def test_png_loses_nothing() -> None:
    """Fault: channels in another order, a picture on its side, lost bits."""
    picture = opened(encoded(PIXELS, PictureFormat()))
    assert (picture.format, picture.size, picture.mode) == ("PNG", (32, 24), "RGB")
    assert np.array_equal(np.asarray(picture), PIXELS)


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_quality_decides_how_much_is_lost(name: str) -> None:
    """Fault: a quality that does nothing, or works the other way round; a file that is not what its name says."""
    best, worst = encoded(PIXELS, PictureFormat(name)), encoded(PIXELS, PictureFormat(name, quality=5))
    assert opened(best).format == name.upper()
    errors = [np.abs(np.asarray(opened(data)).astype(int) - PIXELS).mean() for data in (best, worst)]
    assert len(best) > len(worst) and errors[0] < errors[1] and errors[0] < 4


def test_what_can_be_seen_through_stays_so_where_the_format_and_the_caller_let_it() -> None:
    """Fault: opacity becomes black, or stays where an opaque picture was asked for."""
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[:16] = (200, 0, 0, 255)
    assert np.array_equal(np.asarray(opened(encoded(pixels, PictureFormat()))), pixels)
    for form in (PictureFormat(opaque=True), PictureFormat("webp", opaque=True), PictureFormat("jpeg")):
        flat = np.asarray(opened(encoded(pixels, form)).convert("RGB")).astype(int)
        assert np.abs(flat[24:] - 255).max() < 9 and np.abs(flat[:8] - (200, 0, 0)).max() < 9, form


async def test_encoding_leaves_the_event_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: everybody waits while one picture is encoded; or pictures come back in another order."""
    threads, work = [], pictures.encoded

    def watched(pixels: np.ndarray, form: PictureFormat) -> bytes:
        threads.append(threading.current_thread() is threading.main_thread())
        return work(pixels, form)

    monkeypatch.setattr(pictures, "encoded", watched)
    files = await all_encoded([np.full((1, 1, 3), value, np.uint8) for value in range(4)])
    assert [opened(file).getpixel((0, 0)) for file in files] == [(value,) * 3 for value in range(4)]
    assert threads == [False] * 4


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_whole_files_are_readable(form: str) -> None:
    """Fault: a good file is refused."""
    mask = image(picture_file(mode="RGBA", form="WEBP" if form == "WEBP" else "PNG"), "mask")
    require_readable([image(picture_file(form=form)), image(picture_file(3, 3), "image[1]"), mask])
    assert mask.data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (picture_file()[:-30], "cannot be read"),
        (picture_file(form="WEBP")[:-8], "cannot be read"),
        (picture_file(form="JPEG")[:60], "cannot be read"),
        (picture_file()[:4], "cannot be read"),
        (picture_file()[:60] + b"\0" * 4 + picture_file()[64:], "cannot be read"),
        (picture_file(form="BMP"), "PNG, JPEG, WEBP"),
        (b"<svg/>", "a whole picture"),
    ],
)
def test_what_is_no_whole_picture_is_refused(data: bytes, said: str) -> None:
    """Fault: 500, or a refusal without a name, for a file that is cut, damaged or none."""
    with pytest.raises(InvalidRequestError) as caught:
        require_readable([image(picture_file()), image(data, "image[1]")])
    assert caught.value.field == "image[1]"
    assert said in caught.value.message and "0x" not in caught.value.message


def test_any_damage_is_the_caller_s_fault() -> None:
    """Fault: a byte in the wrong place raises what nobody expects."""
    seen = set()
    for form in ("PNG", "JPEG", "WEBP"):
        whole = bytearray(picture_file(form=form))
        for at in range(min(len(whole), 200)):
            data = bytes(whole[:at]) + bytes([whole[at] ^ 0xFF]) + bytes(whole[at + 1 :])
            try:
                require_readable([image(data)])
            except InvalidRequestError as error:
                seen.add(error.field)
    assert seen == {"image"}


def test_a_mask_is_as_large_as_the_first_image_and_has_opacity() -> None:
    """Fault: a mask is stretched, or compared with another image; one that marks nothing is drawn without a word."""
    first, second = image(picture_file(8, 6), "image[0]"), image(picture_file(4, 4), "image[1]")
    mask = image(picture_file(4, 4, mode="RGBA"), "mask")
    with pytest.raises(InvalidRequestError, match="mask: '4x4' is not accepted; accepted: 8x6, as the first image has"):
        require_readable([first, second, mask])
    require_readable([second, first, mask])
    with pytest.raises(InvalidRequestError, match="mask: has no opacity"):
        require_readable([first, image(picture_file(8, 6), "mask")])


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_photograph_counts_as_it_was_held(form: str) -> None:
    """Fault: a mask that was drawn over an upright photograph is refused, because its file lies on its side; or it is compared
    otherwise than by whoever draws, so that no mask at all will do."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = image(picture_file(6, 8, form=form, exif=exif))
    mask = image(picture_file(8, 6, mode="RGBA"), "mask")
    require_readable([turned, mask])
    with pytest.raises(InvalidRequestError, match="accepted: 6x8"):
        require_readable([image(picture_file(6, 8, form=form)), mask])


def test_a_picture_of_gigapixels_is_not_decoded() -> None:
    """Fault: some hundred bytes make a server decode gigabytes."""
    small = picture_file()
    header = b"IHDR" + struct.pack(">II", 30000, 30000) + small[24:29]
    large = small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:]
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        require_readable([image(large)])
